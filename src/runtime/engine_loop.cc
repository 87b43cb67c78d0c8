#include "runtime/engine_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/reason.h"
#include "runtime/scheduling/commit.h"

namespace tandem {
namespace {

StepWork WorkOf(const BatchPlan& plan) {
  StepWork work;
  for (const SequencePlan& sequence : plan.sequences) {
    const bool is_context = sequence.target_tokens > 1;
    ++(is_context ? work.context_requests : work.generation_requests);
    if (is_context) work.context_tokens += sequence.target_tokens;
  }
  return work;
}

}  // namespace

EngineLoop::EngineLoop(EngineParts parts, Inbox& inbox, EventQueue& events, const Clock& clock)
    : inbox_(inbox),
      events_(events),
      clock_(clock),
      steps_in_flight_(parts.limits.max_launched - 1),
      max_queue_wait_(parts.options.max_queue_wait),
      vocab_size_(parts.vocab_size),
      heartbeat_(parts.heartbeat ? std::move(parts.heartbeat) : std::make_unique<Heartbeat>(clock)),
      kv_(parts.kv),
      speculation_(parts.limits.max_batch_size, parts.limits.max_draft_len, std::move(parts.costs)),
      scheduler_(parts.limits, kv_, speculation_),
      tuner_({.batch_size = parts.options.enable_batch_size_tuning,
              .num_tokens = parts.options.enable_max_num_tokens_tuning,
              .most = scheduler_.bounds(),
              .num_blocks = parts.kv.num_blocks,
              .block_tokens = parts.kv.block_tokens}),
      executor_(std::move(parts.executor)),
      turns_(std::move(parts.turns)) {
  for (int32_t i = 0; i < parts.limits.max_launched; ++i) {
    plans_.emplace_back(parts.limits.max_batch_size, parts.limits.max_num_tokens,
                        parts.kv.block_tokens);
    if (parts.kv.num_host_blocks > 0) {
      plans_.back().batch.host_copies.reserve(static_cast<size_t>(parts.kv.num_blocks));
    }
  }
  changes_.reserve(static_cast<size_t>(parts.limits.max_batch_size) * 2);
  postings_.reserve(changes_.capacity());
  UpdateStats(/*launched=*/false);
}

// ---- The loop ----

bool EngineLoop::Step() {
  const Turn turn(turns_.get());
  const Nanos start = clock_.Now();
  waited_ = Nanos(0);
  const bool launched = Launch();
  const bool landed = Land(launched);
  const bool only_decodes = launched && PlanOf(launched_ - 1).batch.OnlyDecodes();
  if (only_decodes && only_decoded_) {
    totals_.decode_host.Add(InSeconds(clock_.Now() - start - waited_));
  }
  only_decoded_ = only_decodes;
  if (!landed) last_landed_.reset();
  return launched || landed;
}

bool EngineLoop::Launch() {
  heartbeat_->Beat();
  const Nanos now = clock_.Now();
  Admit(now);
  if (failure_.ok()) {
    if (const Status health = executor_->Health(); !health.ok()) Fail(health);
  }
  if (!failure_.ok()) {
    FailOpen();
    return false;
  }
  const BatchPlan& plan = Plan(now);
  if (plan.empty()) return false;
  executor_->Propose(plan);
  executor_->Run(plan);
  executor_->Sample(plan);
  ++launched_;
  return true;
}

// The step just launched may stay in flight; with nothing launched there is no reason to wait.
bool EngineLoop::Land(bool launched) {
  const uint64_t may_fly = launched ? static_cast<uint64_t>(steps_in_flight_) : 0;
  const bool lands = launched_ - landed_ > may_fly;
  if (lands) {
    const Nanos start = clock_.Now();
    const Status status = executor_->Land(result_);
    const Nanos now = clock_.Now();
    heartbeat_->Beat();
    waited_ = now - start;
    if (status.ok()) {
      Commit(now);
      ++landed_;
    } else {
      Fail(status);
    }
  }
  Emit();
  Retire();
  UpdateStats(launched);
  return lands;
}

// ---- Admit ----

void EngineLoop::Admit(Nanos now) {
  const bool cancel_all = inbox_.Take(arrived_, cancels_);
  for (std::unique_ptr<Sequence>& sequence : arrived_) Enter(std::move(sequence));
  arrived_.clear();
  if (cancel_all || !cancels_.empty() || now >= next_deadline_) EndAsked(cancel_all, now);
  cancels_.clear();
}

void EngineLoop::Enter(std::unique_ptr<Sequence> sequence) {
  const Nanos deadline = sequence->request().deadline.value_or(Nanos::max());
  next_deadline_ = std::min({next_deadline_, deadline, WaitEnd(*sequence->open)});
  scheduler_.Enqueue(*sequence);
  sequences_.push_back(std::move(sequence));
}

// Ends sequences that were cancelled or have run out of time.
void EngineLoop::EndAsked(bool cancel_all, Nanos now) {
  next_deadline_ = Nanos::max();
  for (const std::unique_ptr<Sequence>& sequence : sequences_) {
    if (sequence->phase == Phase::kFinished) continue;
    const bool cancelled = cancel_all || AnyNames(cancels_, sequence->open->id, sequence->choice);
    CancelOrTimeOut(*sequence, cancelled, now);
  }
}

void EngineLoop::CancelOrTimeOut(Sequence& sequence, bool cancelled, Nanos now) {
  const Nanos deadline = sequence.request().deadline.value_or(Nanos::max());
  const Nanos wait_end = WaitEnd(*sequence.open);
  if (cancelled) {
    End(sequence, FinishReason::kCancelled);
  } else if (now >= deadline) {
    End(sequence, FinishReason::kTimedOut);
  } else if (now >= wait_end) {
    sequence.error =
        ResourceExhausted(
            fmt::format("Maximum queue wait of {} s has passed, please try again later",
                        InSeconds(max_queue_wait_)))
            .WithReason(Reason::kQueueWait);
    End(sequence, FinishReason::kFailed);
  } else {
    next_deadline_ = std::min({next_deadline_, deadline, wait_end});
    return;
  }
  changes_.push_back({&sequence, 0, 0});
}

// The time at which the request will have waited for its turn as long as it may.
Nanos EngineLoop::WaitEnd(const OpenRequest& request) const {
  if (request.started || max_queue_wait_ == Nanos(0)) return Nanos::max();
  return request.submitted + max_queue_wait_;
}

// ---- Plan ----

const BatchPlan& EngineLoop::Plan(Nanos now) {
  StepPlan& plan = PlanOf(launched_);
  scheduler_.Plan(launched_, plan);
  for (const int32_t slot : plan.vacated_slots) executor_->RemoveSequence(slot);
  for (Sequence* sequence : plan.started) TakeSlot(*sequence, now);
  return plan.batch;
}

void EngineLoop::TakeSlot(Sequence& sequence, Nanos now) {
  if (!sequence.ever_started) {
    sequence.ever_started = true;
    sequence.open->started = true;
    sequence.usage.queued = now - sequence.open->submitted;
    totals_.prompt_tokens += sequence.prompt_tokens();
    inbox_.LeftQueue();
  }
  SlotInit& init = slot_init_;
  init.tokens = sequence.tokens;
  init.prompt_tokens = sequence.prompt_tokens();
  init.max_length = sequence.max_length;
  init.computed = sequence.computed;
  init.layouts = sequence.open->layouts;
  init.SetLists(sequence.request());
  // This plan may verify them already.
  init.SetSent(sequence.request(), sequence.output_tokens() == 0 ? sequence.sent_drafts : 0);
  init.sampling = sequence.request().sampling;
  init.sampling.seed = sequence.open->seed;
  init.sampling.choice = static_cast<uint32_t>(sequence.choice);
  init.constrained = sequence.constraint != nullptr;
  executor_->AddSequence(sequence.slot, init, sequence.constraint);
}

// ---- Commit ----

void EngineLoop::Commit(Nanos now) {
  const StepPlan& plan = PlanOf(result_.step);
  const double taken = InSeconds(now - last_landed_.value_or(now));
  last_landed_ = now;
  speculation_.ObserveStep(result_.times, taken, static_cast<int32_t>(plan.sequences.size()),
                           static_cast<int32_t>(result_.tokens.size()));
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    Sequence& sequence = *plan.sequences[i];
    sequence.WorkOf(result_.step) = {};
    ReleaseCopySource(sequence, kv_);
    // A sequence that was cancelled meanwhile has already had its last event.
    if (sequence.phase != Phase::kFinished) {
      CommitSequence(sequence, plan.batch.sequences[i], result_.sequences[i], now);
    }
    if (sequence.phase == Phase::kPausing && !sequence.InFlightAny()) {
      executor_->RemoveSequence(scheduler_.FinishPause(sequence));
    }
  }
  ++totals_.steps;
}

void EngineLoop::CommitSequence(Sequence& sequence, const SequencePlan& planned,
                                const SequenceResult& result, Nanos now) {
  const auto tokens =
      std::span(result_.tokens)
          .subspan(static_cast<size_t>(result.first_token), static_cast<size_t>(result.num_tokens));
  const Usage before = sequence.usage;
  const int32_t shown = CommitTokens(sequence, result, tokens, now);
  if (result.first_kept >= 0) TakeLogits(sequence, planned, result, shown);
  PublishBlocks(sequence, kv_);
  TrimWindows(sequence, kv_);
  if (!planned.sent) speculation_.ObserveDrafts(result.proposed, result.accepted);
  totals_.output_tokens += shown;
  totals_.draft_rounds += sequence.usage.draft_rounds - before.draft_rounds;
  totals_.drafts_proposed += sequence.usage.drafts_proposed - before.drafts_proposed;
  totals_.drafts_accepted += sequence.usage.drafts_accepted - before.drafts_accepted;
  if (sequence.finish != FinishReason::kNone) End(sequence, sequence.finish);
  if (shown > 0 || sequence.finish != FinishReason::kNone) {
    changes_.push_back({&sequence, result.first_token, shown});
  }
}

// Reads the step's logits for the client: copies or scores those of the prompt tokens that it
// computed, and copies one row for each token shown.
void EngineLoop::TakeLogits(Sequence& sequence, const SequencePlan& planned,
                            const SequenceResult& result, int32_t shown) {
  const auto logits = [&](int32_t index) {
    return std::span(result_.kept + (result.first_kept + index) * vocab_size_,
                     static_cast<size_t>(vocab_size_));
  };
  const auto row = [&](int32_t index) {
    const std::span<const float> values = logits(index);
    return LogitsRow(values.begin(), values.end());
  };
  const int32_t context = planned.keeps_context ? planned.target_tokens : 0;
  for (int32_t i = 0; i < context; ++i) {
    // A draw that was put off computes the last token again.
    const bool is_complete = std::ssize(sequence.context_logits) == sequence.prompt_tokens();
    if (sequence.request().return_context_logits && !is_complete) {
      sequence.context_logits.push_back(row(i));
    }
    if (sequence.request().num_prompt_logprobs >= 0) ScorePrompt(sequence, logits(i));
  }
  if (!planned.keeps_drawn) return;
  const int32_t first_drawn = std::max(context - 1, 0);  // the last row of the range
  for (int32_t i = 0; i < shown; ++i) sequence.drawn_logits.push_back(row(first_drawn + i));
}

// `logits` follow the prompt's tokens scored so far.
void EngineLoop::ScorePrompt(Sequence& sequence, std::span<const float> logits) {
  const Request& request = sequence.request();
  std::vector<SampledToken>& scored = sequence.prompt_logprobs;
  if (scored.empty()) scored.emplace_back().token = request.prompt.front();
  if (scored.size() == request.prompt.size()) return;  // those that the first token is drawn from
  if (scorer_ == nullptr) scorer_ = std::make_unique<PromptScorer>();
  const int32_t next = request.prompt[scored.size()];
  scored.push_back(scorer_->Score(logits, next, request.num_prompt_logprobs));
}

// The sequence is not planned again; its blocks are released when no step in flight names it.
void EngineLoop::End(Sequence& sequence, FinishReason reason) {
  if (sequence.phase == Phase::kWaiting) {
    scheduler_.Dequeue(sequence);
    if (!sequence.ever_started) inbox_.LeftQueue();
  }
  sequence.phase = Phase::kFinished;
  sequence.finish = reason;
  any_ended_ = true;
}

// ---- Emit ----

void EngineLoop::Emit() {
  if (changes_.empty()) return;
  postings_.clear();
  for (const Change& change : changes_) {
    Sequence& sequence = *change.sequence;
    // Incomplete logits of a prompt end with their sequence.
    const auto is_complete = [&](const auto& rows) {
      return static_cast<int32_t>(rows.size()) == sequence.prompt_tokens();
    };
    const bool has_context = is_complete(sequence.context_logits);
    const bool has_scores = is_complete(sequence.prompt_logprobs);
    postings_.push_back({.mailbox = sequence.mailbox,
                         .tokens = std::span(result_.tokens)
                                       .subspan(static_cast<size_t>(change.first_token),
                                                static_cast<size_t>(change.num_tokens)),
                         .context_logits = has_context ? &sequence.context_logits : nullptr,
                         .drawn_logits = &sequence.drawn_logits,
                         .prompt_logprobs = has_scores ? &sequence.prompt_logprobs : nullptr,
                         .end = &sequence.end,
                         .usage = &sequence.usage,
                         .finish = sequence.finish,
                         .error = &sequence.error});
  }
  events_.Push(postings_);
  changes_.clear();
}

// ---- The end of a sequence ----

// No step in flight will end, and no step is launched any more.
void EngineLoop::Fail(const Status& why) {
  failure_ = Unavailable(fmt::format(
      "the engine has failed and must be started again; send the request to another server ({})",
      why.message()));
  LogError("the engine has failed, {} open sequences with it: {}", sequences_.size(),
           why.ToString());
  inbox_.Close(failure_);
  landed_ = launched_;
  FailOpen();
}

void EngineLoop::FailOpen() {
  for (const std::unique_ptr<Sequence>& sequence : sequences_) {
    std::ranges::fill(sequence->in_flight, Sequence::InFlight{});
    ReleaseCopySource(*sequence, kv_);
    if (sequence->phase == Phase::kFinished) continue;
    sequence->error = failure_;
    End(*sequence, FinishReason::kFailed);
    changes_.push_back({sequence.get(), 0, 0});
  }
}

void EngineLoop::Retire() {
  if (!any_ended_) return;
  bool waits = false;
  std::erase_if(sequences_, [&](const std::unique_ptr<Sequence>& sequence) {
    if (sequence->phase != Phase::kFinished) return false;
    waits = waits || sequence->InFlightAny();
    if (sequence->InFlightAny()) return false;
    Leave(*sequence);
    return true;
  });
  any_ended_ = waits;
}

void EngineLoop::Leave(Sequence& sequence) {
  if (sequence.slot >= 0) {
    speculation_.ObserveOutput(sequence.output_tokens());
    if (tuner_.Observe(sequence.prompt_tokens(), sequence.output_tokens())) {
      scheduler_.SetBounds(tuner_.bounds());
    }
    executor_->RemoveSequence(scheduler_.Release(sequence));
  }
  OpenRequest& request = *sequence.open;
  request.failed = request.failed || sequence.finish == FinishReason::kFailed;
  if (--request.open_choices == 0) {
    ++(request.failed ? totals_.requests_failed : totals_.requests_finished);
  }
  inbox_.Ended();
}

// ---- Figures ----

void EngineLoop::UpdateStats(bool launched) {
  totals_.step = launched ? WorkOf(PlanOf(launched_ - 1).batch) : StepWork();
  totals_.bounds = scheduler_.bounds();
  totals_.running = static_cast<int32_t>(scheduler_.active().size());
  totals_.waiting = static_cast<int32_t>(scheduler_.waiting().size());
  totals_.paused = scheduler_.paused();
  totals_.preemptions = scheduler_.preemptions();
  totals_.kv = kv_.Stats();
  totals_.failure = failure_;
  const MutexLock lock(stats_mutex_);
  stats_ = totals_;
}

EngineStats EngineLoop::Stats() const {
  EngineStats stats;
  {
    const MutexLock lock(stats_mutex_);
    stats = stats_;
  }
  stats.seconds_since_progress = InSeconds(heartbeat_->Age());
  return stats;
}

}  // namespace tandem
