// EngineLoop: the seven verbs. Owns every sequence, the KV cache, the scheduler, what speculation
// has learnt and the executor; other threads touch only Inbox, EventQueue and the snapshot that
// Stats returns.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "runtime/engine_parts.h"
#include "runtime/engine_stats.h"
#include "runtime/event_queue.h"
#include "runtime/execution/prompt_scorer.h"
#include "runtime/inbox.h"
#include "runtime/scheduling/scheduler.h"
#include "runtime/scheduling/step_tuner.h"
#include "runtime/speculation/speculation.h"

namespace tandem {

class EngineLoop {
 public:
  // `inbox`, `events` and `clock` outlive the loop.
  EngineLoop(EngineParts parts, Inbox& inbox, EventQueue& events, const Clock& clock);

  // Called by the thread that will call Step, unless it made the engine.
  void BindThread() { executor_->BindThread(); }
  // One turn; false when there was nothing to do. After a device failure it always returns false,
  // and new requests are answered with that failure. Engine thread.
  bool Step();
  EngineStats Stats() const;  // any thread
  // Ends what a step waits for besides the device. Any thread.
  void Abandon() { executor_->Abandon(); }
  // Aborts when the block counts do not add up. Engine thread.
  void CheckIntegrity() const { kv_.CheckIntegrity(); }

 private:
  // News of a sequence for Emit: tokens of the current result, and its state.
  struct Change {
    Sequence* sequence = nullptr;
    int32_t first_token = 0;
    int32_t num_tokens = 0;
  };

  bool Launch();
  bool Land(bool launched);
  void Admit(Nanos now);
  const BatchPlan& Plan(Nanos now);
  void Commit(Nanos now);
  void Emit();

  void Enter(std::unique_ptr<Sequence> sequence);
  void EndAsked(bool cancel_all, Nanos now);
  void CancelOrTimeOut(Sequence& sequence, bool cancelled, Nanos now);
  Nanos WaitEnd(const OpenRequest& request) const;
  void TakeSlot(Sequence& sequence, Nanos now);
  void CommitSequence(Sequence& sequence, const SequencePlan& planned, const SequenceResult& result,
                      Nanos now);
  void TakeLogits(Sequence& sequence, const SequencePlan& planned, const SequenceResult& result,
                  int32_t shown);
  void ScorePrompt(Sequence& sequence, std::span<const float> logits);
  void End(Sequence& sequence, FinishReason reason);
  void Fail(const Status& why);
  void FailOpen();
  void Retire();
  void Leave(Sequence& sequence);
  void UpdateStats(bool launched);
  StepPlan& PlanOf(uint64_t step) { return plans_[step % plans_.size()]; }

  Inbox& inbox_;
  EventQueue& events_;
  const Clock& clock_;
  const int32_t steps_in_flight_;
  const Nanos max_queue_wait_;
  const int64_t vocab_size_;
  const std::unique_ptr<Heartbeat> heartbeat_;
  KvCache kv_;
  Speculation speculation_;
  Scheduler scheduler_;
  StepTuner tuner_;
  const std::unique_ptr<Executor> executor_;
  std::unique_ptr<PromptScorer> scorer_;  // made for the first prompt that is scored
  const std::shared_ptr<Turns> turns_;

  std::vector<std::unique_ptr<Sequence>> sequences_;  // open ones, in the order of their arrival
  Nanos next_deadline_ = Nanos::max();                // the earliest deadline of the open sequences
  Status failure_;                                    // the device's failure, sent to clients
  std::vector<StepPlan> plans_;  // a ring: one for each step that may be launched at once
  bool only_decoded_ = false;    // whether the previous step only decoded
  uint64_t launched_ = 0;        // steps
  uint64_t landed_ = 0;          // steps
  SlotInit slot_init_;           // of the current sequence; reused for its memory
  StepResult result_;
  std::vector<Change> changes_;
  std::vector<Posting> postings_;  // scratch of Emit
  bool any_ended_ = false;
  Nanos waited_{0};                   // for results, in the current turn
  std::optional<Nanos> last_landed_;  // when a step ended in the turn before
  // Scratch of Admit.
  std::vector<std::unique_ptr<Sequence>> arrived_;
  std::vector<Cancellation> cancels_;

  EngineStats totals_;  // engine thread
  mutable Mutex stats_mutex_;
  EngineStats stats_ TANDEM_GUARDED_BY(stats_mutex_);
};

}  // namespace tandem
