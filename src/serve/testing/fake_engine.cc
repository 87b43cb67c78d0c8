#include "serve/testing/fake_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/reason.h"
#include "serve/testing/byte_codec.h"

namespace tandem::serve {
namespace {

constexpr size_t kMaxEvents = 4096;  // a full queue pauses the sequences

// As tokens that ByteCodec reads.
Script WithTokens(Script script) {
  if (!script.tokens.empty()) return script;
  for (const char byte : script.answer) script.tokens.push_back(ByteCodec::TokenOf(byte));
  return script;
}

// The token and those after it, the less likely the later.
void AddTop(int32_t count, float logprob, SampledToken& token) {
  token.num_top = std::max(count, 0);
  for (int32_t i = 0; i < token.num_top; ++i) {
    token.top_ids[i] = token.token + i;
    token.top_logprobs[i] = logprob * static_cast<float>(i + 1);
  }
}

std::vector<SampledToken> ScoredPrompt(const std::vector<int32_t>& prompt, int32_t num_top) {
  std::vector<SampledToken> scored(prompt.size());
  for (size_t i = 0; i < prompt.size(); ++i) {
    scored[i].token = prompt[i];
    if (i == 0) continue;
    scored[i].logprob = -0.5f;
    AddTop(num_top, -0.5f, scored[i]);
  }
  return scored;
}

bool Has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

Script DefaultScript(const std::string& prompt) {
  if (Has(prompt, "fail now")) return {"", 0};
  if (Has(prompt, "fail later")) return {"abcdef", 3};
  if (Has(prompt, "wait too long")) {
    return {"", 0,
            ResourceExhausted("Maximum queue wait of 60 s has passed, please try again later")
                .WithReason(Reason::kQueueWait)};
  }
  if (Has(prompt, "tandem")) return {"One behind the other.", {}};
  if (Has(prompt, "call a tool")) {
    return {
        "Let me see.\n<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": [1, 2.5]}}</tool_call>",
        {}};
  }
  if (Has(prompt, "think first")) return {"<think>\nHm, yes?\n</think>\n\nYes.", {}};
  if (Has(prompt, "emoji")) return {"h\xC3\xA9llo \xF0\x9F\x99\x82!", {}};
  if (Has(prompt, "empty")) return {"", {}};
  if (Has(prompt, "endless")) {
    std::string text;
    while (text.size() < 4096) text += "abcdefgh ";
    return {text, {}};
  }
  return {"\nMachine learning is a subset of artificial intelligence.", {}};
}

FakeEngine::FakeEngine(FakeEngineOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

FakeEngine::~FakeEngine() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

Result<RequestId> FakeEngine::Submit(Request request) {
  const std::string prompt = ByteCodec::TextOf(request.prompt);
  const Script script = options_.script ? options_.script(prompt) : DefaultScript(prompt);
  const MutexLock lock(mutex_);
  if (static_cast<int>(sequences_.size()) + request.num_choices > options_.limits.max_queue_size) {
    return ResourceExhausted(
               fmt::format("Maximum queue size of {} has been reached, please try again later",
                           options_.limits.max_queue_size))
        .WithReason(Reason::kQueueFull);
  }
  const RequestId id = next_id_++;
  for (int32_t choice = 0; choice < request.num_choices; ++choice) {
    const bool is_later = choice > 0 && script.later_answer;
    sequences_.push_back({id, choice,
                          WithTokens(is_later ? Script{*script.later_answer, {}} : script), 0,
                          request.max_tokens, request.prompt, request.sampling.num_top_logprobs,
                          request.seed.value_or(4242), request.return_context_logits && choice == 0,
                          choice == 0 ? request.num_prompt_logprobs : -1});
  }
  totals_.prompt_tokens += static_cast<int64_t>(request.prompt.size());
  last_request_ = std::move(request);
  changed_.NotifyAll();
  return id;
}

void FakeEngine::Cancel(RequestId request, int32_t choice) {
  const MutexLock lock(mutex_);
  for (Sequence& sequence : sequences_) {
    const bool named =
        sequence.request == request && (choice == kAllChoices || choice == sequence.choice);
    if (named && !std::exchange(sequence.cancelled, true)) ++num_cancelled_;
  }
  changed_.NotifyAll();
}

bool FakeEngine::PopEvent(Event& event, Nanos timeout) {
  MutexLock lock(mutex_);
  changed_.WaitFor(lock, timeout,
                   [this]() TANDEM_REQUIRES(mutex_) { return stop_ || !events_.empty(); });
  if (events_.empty()) return false;
  event = std::move(events_.front());
  events_.pop_front();
  changed_.NotifyAll();
  return true;
}

EngineStats FakeEngine::Stats() const {
  const MutexLock lock(mutex_);
  EngineStats stats = totals_;
  stats.running = static_cast<int32_t>(sequences_.size());
  stats.kv.total_blocks = 1000;
  stats.kv.referenced_blocks = stats.running;
  stats.kv.free_blocks = 1000 - stats.running;
  return stats;
}

Result<KvEventBatch> FakeEngine::TakeKvEvents(size_t most) {
  const MutexLock lock(mutex_);
  if (kv_events_.empty()) return FailedPrecondition("no events are kept: --kv_event_buffer");
  KvEventBatch batch;
  const auto count = static_cast<ptrdiff_t>(std::min(most, kv_events_.size()));
  batch.events.assign(kv_events_.begin(), kv_events_.begin() + count);
  kv_events_.erase(kv_events_.begin(), kv_events_.begin() + count);
  batch.lost = 3;
  return batch;
}

void FakeEngine::AddKvEvent(KvEvent event) {
  const MutexLock lock(mutex_);
  kv_events_.push_back(std::move(event));
}

int FakeEngine::open_sequences() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(sequences_.size());
}

Request FakeEngine::last_request() const {
  const MutexLock lock(mutex_);
  return last_request_;
}

void FakeEngine::SetHealth(double seconds_since_progress, const Status& failure) {
  const MutexLock lock(mutex_);
  totals_.seconds_since_progress = seconds_since_progress;
  totals_.failure = failure;
}

void FakeEngine::Pause() {
  const MutexLock lock(mutex_);
  paused_ = true;
}

void FakeEngine::Resume() {
  const MutexLock lock(mutex_);
  paused_ = false;
  changed_.NotifyAll();
}

void FakeEngine::Run() {
  MutexLock lock(mutex_);
  while (!stop_) {
    const auto cancelled = [](const Sequence& s) { return s.cancelled; };
    const bool any_cancelled = std::any_of(sequences_.begin(), sequences_.end(), cancelled);
    if (sequences_.empty() || (paused_ && !any_cancelled) || events_.size() >= kMaxEvents) {
      changed_.Wait(lock);
      continue;
    }
    StepLocked();
    changed_.NotifyAll();
    // A step's sleep blocks no other call.
    changed_.WaitFor(lock, options_.step > Nanos(0) ? options_.step : Nanos(1000),
                     [this]() TANDEM_REQUIRES(mutex_) { return stop_; });
  }
}

void FakeEngine::StepLocked() {
  ++totals_.steps;
  if (options_.last_sequence_first) std::ranges::reverse(sequences_);
  for (Sequence& sequence : sequences_) {
    if (paused_ && !sequence.cancelled) continue;
    events_.push_back(Advance(sequence));
    totals_.output_tokens += static_cast<int64_t>(events_.back().tokens.size());
    if (events_.back().finish != FinishReason::kNone) sequence.max_tokens = 0;
  }
  if (options_.last_sequence_first) std::ranges::reverse(sequences_);
  std::erase_if(sequences_, [](const Sequence& s) { return s.max_tokens == 0; });
}

Event FakeEngine::Advance(Sequence& sequence) const {
  Event event;
  event.request = sequence.request;
  event.choice = sequence.choice;
  if (sequence.cancelled) {
    event.finish = FinishReason::kCancelled;
  } else if (sequence.script.fail_after == sequence.position) {
    event.finish = FinishReason::kFailed;
    event.error = sequence.script.failure;
  } else if (sequence.position == sequence.script.tokens.size()) {
    event.finish = FinishReason::kEnd;
    event.end.token = ByteCodec::kEnd;
    if (sequence.num_top_logprobs >= 0) event.end.logprob = -0.25f;
    AddTop(sequence.num_top_logprobs, -0.25f, event.end);
  } else {
    SampledToken token{};
    token.token = sequence.script.tokens[sequence.position++];
    if (sequence.num_top_logprobs >= 0) token.logprob = -0.25f;
    AddTop(sequence.num_top_logprobs, -0.25f, token);
    event.tokens.push_back(token);
    if (sequence.num_prompt_logprobs >= 0 && sequence.position == 1) {
      event.prompt_logprobs = ScoredPrompt(sequence.prompt, sequence.num_prompt_logprobs);
    }
    if (sequence.wants_context_logits && sequence.position == 1) {
      for (size_t i = 0; i < sequence.prompt.size(); ++i) {
        event.context_logits.push_back({static_cast<float>(i)});
      }
    }
    if (sequence.position == static_cast<size_t>(sequence.max_tokens))
      event.finish = FinishReason::kLength;
  }
  const auto produced = static_cast<int32_t>(sequence.position);
  event.usage.prompt_tokens = static_cast<int32_t>(sequence.prompt.size());
  event.usage.cached_tokens = event.usage.prompt_tokens / 2;
  event.usage.output_tokens = produced;
  event.usage.drafts_proposed = produced;
  event.usage.drafts_accepted = produced / 2;
  event.usage.seed = sequence.seed;
  return event;
}

}  // namespace tandem::serve
