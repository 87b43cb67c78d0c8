#include "runtime/engine.h"

#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "runtime/engine_loop.h"
#include "runtime/engine_parts.h"
#include "runtime/event_queue.h"
#include "runtime/inbox.h"
#include "runtime/request/validate_request.h"

namespace tandem {
namespace {

// Largest requests that may get logits at once, with those whose logits wait to be read.
constexpr int64_t kRequestsWithLogits = 4;

// Wakes an idle loop for its heartbeat.
constexpr Nanos kIdleWait = std::chrono::milliseconds(200);
// Time to finish after a drain or a stop: two steps, however long they are.
constexpr Nanos kCancelWait = std::chrono::seconds(60);
// For the step that runs when the loop is stopped.
constexpr Nanos kStopWait = std::chrono::seconds(10);

Status ShuttingDown() {
  return Unavailable("the server is shutting down; send the request to another one");
}

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t SeedSource(uint64_t seed) {
  if (seed != 0) return seed;
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Room for every choice that waits or runs, and the same number again for choices whose last event
// has not been read yet.
int32_t NumMailboxes(const EngineOptions& options) {
  return 2 * (options.max_queue_size + options.max_batch_size);
}

EngineLimits LimitsOf(const EngineParts& parts) {
  const EngineOptions& options = parts.options;
  EngineLimits limits;
  limits.max_seq_len = options.max_seq_len;
  limits.max_input_len = options.max_seq_len;
  if (options.max_input_len > 0) {
    limits.max_input_len = std::min(limits.max_input_len, options.max_input_len);
  }
  if (!options.enable_chunked_prefill) {
    limits.max_input_len = std::min(limits.max_input_len, options.max_num_tokens);
  }
  limits.max_choices = std::min(options.max_batch_size, options.max_queue_size);
  limits.max_queue_size = options.max_queue_size;
  limits.vocab_size = parts.vocab_size;
  limits.max_sent_drafts = parts.limits.max_sent_drafts;
  limits.max_logits_bytes = options.max_logits_bytes;
  return limits;
}

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kEnd:
      return "end";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kTimedOut:
      return "timed_out";
    case FinishReason::kFailed:
      return "failed";
  }
  return "unknown";
}

struct Engine::Impl {
  Impl(EngineParts parts, const Clock& clock)
      : options(parts.options),
        limits(LimitsOf(parts)),
        has_draft(parts.limits.draft_model),
        prompt_rules(parts.prompt_rules),
        memory_plan(std::move(parts.memory_plan)),
        memory(parts.memory),
        kv_events(std::move(parts.kv_events)),
        clock(clock),
        seed_source(SeedSource(options.seed)),
        inbox(options.max_queue_size),
        events(parts.events ? std::move(parts.events) : std::make_shared<EventQueue>(0)),
        loop(std::move(parts), inbox, *events, clock) {
    events->AddRoom(NumMailboxes(options), kRequestsWithLogits * options.max_logits_bytes);
  }

  void RunLoop() {
    loop.BindThread();
    while (!stop) {
      if (!loop.Step()) inbox.WaitForWork(kIdleWait);
    }
    loop_ended.set_value();
  }

  // Another process of the model may keep a step waiting for good.
  void JoinLoop() {
    if (!thread.joinable()) return;
    if (loop_ended.get_future().wait_for(kStopWait) == std::future_status::timeout) loop.Abandon();
    thread.join();
  }

  // True when every sequence ended within `timeout`; drives the loop where no thread does.
  bool RunUntilEmpty(Nanos timeout) {
    if (thread.joinable()) return inbox.WaitUntilEmpty(timeout);
    const Nanos end = clock.Now() + timeout;
    while (inbox.open() > 0 && clock.Now() < end) loop.Step();
    return inbox.open() == 0;
  }

  std::vector<std::unique_ptr<Sequence>> MakeSequences(const std::shared_ptr<OpenRequest>& open,
                                                       const std::vector<int32_t>& mailboxes) const;

  // Constant.
  const EngineOptions options;
  const EngineLimits limits;
  const bool has_draft;
  const std::array<PromptRules, kNumModels> prompt_rules;
  const std::vector<MemoryLine> memory_plan;
  const MemoryUse memory;
  const std::unique_ptr<KvEvents> kv_events;  // thread-safe; null: none are kept
  const Clock& clock;
  const uint64_t seed_source;

  std::atomic<RequestId> last_id{0};
  Inbox inbox;
  const std::shared_ptr<EventQueue> events;
  EngineLoop loop;
  std::thread thread;
  std::atomic<bool> stop{false};
  std::promise<void> loop_ended;  // of the thread
};

std::vector<std::unique_ptr<Sequence>> Engine::Impl::MakeSequences(
    const std::shared_ptr<OpenRequest>& open, const std::vector<int32_t>& mailboxes) const {
  std::vector<std::unique_ptr<Sequence>> sequences;
  const Request& request = open->request;
  open->open_choices = request.num_choices;
  for (int32_t choice = 0; choice < request.num_choices; ++choice) {
    auto sequence = std::make_unique<Sequence>();
    sequence->open = open;
    sequence->choice = choice;
    sequence->max_length = static_cast<int32_t>(request.prompt.size()) + request.max_tokens;
    sequence->sent_drafts = NumSentDrafts(request);
    sequence->mailbox = mailboxes[static_cast<size_t>(choice)];
    if (request.constraint) sequence->constraint = request.constraint->Clone();
    // Reserve the whole length, so that no step allocates.
    sequence->tokens.reserve(static_cast<size_t>(sequence->max_length));
    sequence->tokens = request.prompt;
    sequence->usage.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    sequence->usage.seed = open->seed;
    sequence->usage.arrival = open->submitted;
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { Stop(); }

std::unique_ptr<Engine> Engine::FromParts(EngineParts parts, const Clock& clock) {
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Impl>(std::move(parts), clock)));
}

Result<RequestId> Engine::Submit(Request request) { return TrySubmit(request); }

Result<RequestId> Engine::TrySubmit(Request& request, std::optional<RequestId> id) {
  TANDEM_RETURN_IF_ERROR(ValidateRequest(request, impl_->limits));
  TANDEM_ASSIGN_OR_RETURN(const PromptLayouts layouts, LayOut(impl_->prompt_rules, request));
  TANDEM_RETURN_IF_ERROR(impl_->inbox.HasRoom(request.num_choices));
  auto open = std::make_shared<OpenRequest>();
  open->layouts = layouts;
  open->id = id ? *id : ++impl_->last_id;
  // A drawn seed is reported as a JSON number: every reader of one keeps 53 bits.
  open->seed = request.seed.value_or(Mix(impl_->seed_source + open->id) >> 11);
  open->submitted = impl_->clock.Now();
  std::vector<int32_t> mailboxes;
  const LogitsBytes logits = LogitsBytesOf(request, impl_->limits.vocab_size);
  TANDEM_RETURN_IF_ERROR(impl_->events->Open(open->id, request.num_choices, mailboxes, logits));
  open->request = std::move(request);
  std::vector<std::unique_ptr<Sequence>> sequences = impl_->MakeSequences(open, mailboxes);
  const Status put = impl_->inbox.Put(sequences);
  if (!put.ok()) {
    impl_->events->Abandon(mailboxes);
    request = std::move(open->request);
    return put;
  }
  return open->id;
}

void Engine::Cancel(RequestId request, int32_t choice) { impl_->inbox.Cancel({request, choice}); }

bool Engine::PopEvent(Event& event, Nanos timeout) { return impl_->events->Pop(event, timeout); }

void Engine::Start() {
  TANDEM_CHECK(!impl_->thread.joinable(), "the engine is running");
  impl_->stop = false;
  impl_->loop_ended = {};
  impl_->thread = std::thread([this] { impl_->RunLoop(); });
}

bool Engine::Drain(Nanos timeout) {
  impl_->inbox.Close(ShuttingDown());
  const bool ended = impl_->RunUntilEmpty(timeout);
  if (ended) return true;
  impl_->inbox.CancelAll();
  impl_->RunUntilEmpty(kCancelWait);
  return false;
}

void Engine::Stop() {
  impl_->inbox.Close(ShuttingDown());
  impl_->stop = true;
  impl_->inbox.WakeLoop();
  impl_->JoinLoop();
  impl_->inbox.CancelAll();
  while (impl_->inbox.open() > 0) impl_->loop.Step();
}

bool Engine::Step() {
  TANDEM_CHECK(!impl_->thread.joinable(), "the loop runs on its own thread");
  return impl_->loop.Step();
}

EngineStats Engine::Stats() const {
  EngineStats stats = impl_->loop.Stats();
  stats.max_running = impl_->options.max_batch_size;
  stats.memory = impl_->memory;
  return stats;
}

Result<KvEventBatch> Engine::TakeKvEvents(size_t most) {
  if (impl_->kv_events) return impl_->kv_events->Take(most);
  return FailedPrecondition(
      "no events of the key-value cache are kept: start the server with --kv_event_buffer");
}

const std::vector<MemoryLine>& Engine::memory_plan() const { return impl_->memory_plan; }
const EngineOptions& Engine::options() const { return impl_->options; }
const EngineLimits& Engine::limits() const { return impl_->limits; }
bool Engine::has_draft() const { return impl_->has_draft; }
void Engine::CheckIntegrity() const { impl_->loop.CheckIntegrity(); }

}  // namespace tandem
