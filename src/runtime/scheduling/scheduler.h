// Scheduler: decides the next step. A function of the sequences, the KV cache, the limits and what
// speculation has learnt: no device call, no clock, no randomness. The only code that reserves
// blocks (for both models at once) or preempts. Engine thread only; allocates nothing once its
// lists have grown.
//
// Order: higher priority first. Within a step decoding sequences come before prompt chunks, and
// those before new sequences, all under one budget of rows.
//
// Slots are shared between requests, not choices: the waiting request with the fewest slots starts
// a choice first, then the one that has waited longest since it last started one. A request that
// holds its share (slots divided by requests, rounded up) takes another slot only while no request
// with fewer waits, and leaves a slot in which a request has just ended to the next one for a few
// plans. Where nothing is reserved, a waiting request that finds no slot takes one from the request
// that holds most, if that holds at least two more: its choice that started last is paused, among
// those that have drawn a few tokens since, so that no start is undone at once.
//
// Progress is guaranteed: while a sequence is open, some step within the next three plans, starts
// or pauses one. In particular a sequence that is alone pauses itself when the cached copies of its
// own prefix hold the blocks that it needs (it then starts again from those copies), and a match
// never keeps out a prompt that fits the pool without it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cache/kv_cache.h"
#include "runtime/scheduling/batch_plan.h"
#include "runtime/scheduling/sequence.h"
#include "runtime/scheduling/step_limits.h"
#include "runtime/scheduling/step_tuner.h"
#include "runtime/speculation/draft_mode.h"
#include "runtime/speculation/round_planner.h"
#include "runtime/speculation/speculation.h"

namespace tandem {

enum class SchedulerPolicy : uint8_t {
  kMaxUtilization,  // admit optimistically; pause the last started when blocks run out, re-prefill
                    // later
  kGuaranteedNoEvict,  // reserve to the longest possible length
  kStaticBatch,        // as no-evict, but admit only when nothing is active
};

// Constant after construction.
struct SchedulerLimits : StepLimits {
  bool chunked_prefill = true;
  bool prefix_reuse = true;
  SchedulerPolicy policy = SchedulerPolicy::kMaxUtilization;
  DraftMode draft_mode = DraftMode::kOff;
  int32_t fixed_draft_len = 0;
  bool draft_model = false;          // false: drafts come from look-ups only
  int32_t draft_max_positions = 0;   // the draft model's longest context
  bool drafts_unconstrained = true;  // there are drafts but for what a TokenConstraint forces
  bool drafts_constrained = true;    // the executor drafts for sequences with a TokenConstraint
};

// A step's plan, and the engine's work before and after it. Reused from step to step.
struct StepPlan {
  BatchPlan batch;
  std::vector<Sequence*> sequences;    // of batch.sequences, in its order
  std::vector<int32_t> vacated_slots;  // of paused sequences: clear them before the launch,
  std::vector<Sequence*> started;      // and before these fill theirs

  StepPlan() = default;
  // Reserves room for the lists of a step with this many sequences and rows.
  StepPlan(int32_t max_batch_size, int32_t max_num_tokens, int32_t block_tokens);
  void Clear(uint64_t step);
};

class Scheduler {
 public:
  // `kv` and `speculation` outlive the scheduler.
  Scheduler(const SchedulerLimits& limits, KvCache& kv, Speculation& speculation);

  // From the next plan on; at most the limits, at least one sequence. A token bound below the slots
  // plus one request's drafts is raised to that sum. Sequences that hold slots beyond a lower bound
  // keep them. Tokens are only bounded with chunked prompts.
  void SetBounds(const StepBounds& bounds);
  const StepBounds& bounds() const { return bounds_; }

  // Queues a new sequence.
  void Enqueue(Sequence& sequence);
  // Removes a waiting sequence from the queue.
  void Dequeue(Sequence& sequence);
  void Plan(uint64_t step, StepPlan& plan);
  // Releases the slot and the blocks of a sequence that no step in flight names; returns the slot.
  int32_t Release(Sequence& sequence);
  // Called when the last step that named a pausing sequence has ended: releases it and queues it
  // again.
  int32_t FinishPause(Sequence& sequence);

  // Valid until the next call that changes the scheduler.
  const std::vector<Sequence*>& waiting() const { return waiting_; }
  const std::vector<Sequence*>& active() const { return active_; }  // slot holders
  int64_t preemptions() const { return preemptions_; }
  int32_t paused() const { return paused_; }  // of waiting(): those that have held a slot

 private:
  // The rest of the budget of the step being planned.
  struct Budget {
    int32_t rows = 0;
    int32_t draft_rows = 0;
    int32_t spare_logits = 0;  // rows of logits beyond one for every slot
    int32_t sent_rows = 0;     // of StepLimits::MaxSentRows
  };

  struct FreeSlot {
    int32_t slot = 0;
    uint64_t kept_until = 0;  // the first plan in which a request that holds its share may take it
  };

  void ShareSlots(StepPlan& plan);
  void CountStaying();
  Sequence* NextToGive(double priority, int32_t fewest);
  bool Kept(const FreeSlot& slot) const { return slot.kept_until > plans_; }
  int32_t Share() const;
  int32_t UsableSlots() const;
  std::vector<FreeSlot>::iterator FindSlot(const OpenRequest& request);
  void PlanDecodes(StepPlan& plan);
  void GatherDecoding(StepPlan& plan);
  bool HasRoomForSent(int32_t sent) const;
  void TakeRoomForSent(int32_t sent);
  void VerifyAtOnce(Sequence& sequence, StepPlan& plan);
  void ChooseDrafts();
  void ChooseFixedDrafts(int32_t max_drafts);
  DraftCandidate CandidateOf(const Sequence& sequence) const;
  int32_t MaxDrafts(const Sequence& sequence) const;
  void PlanDecode(Sequence& sequence, int32_t num_drafts, StepPlan& plan);
  int32_t PlanDraftTokens(const Sequence& sequence, int32_t& num_drafts);
  void PlanPrefills(StepPlan& plan);
  void PlanPrefill(Sequence& sequence, StepPlan& plan);
  void StartWaiting(StepPlan& plan);
  bool TryStart(Sequence& sequence, StepPlan& plan);
  bool Fits(const Sequence& sequence, const PrefixMatch& match, int32_t length) const;
  void TakeWindows(Sequence& sequence, int32_t num_blocks);
  void Start(Sequence& sequence, const PrefixMatch& match);
  bool AnotherComputesNextBlock(const Sequence& sequence) const;
  void InsertWaiting(Sequence& sequence);
  size_t MoveWaiting(const OpenRequest& request, size_t place);
  void Forget(OpenRequest& request);
  void Add(Sequence& sequence, const Sequence::InFlight& work, StepPlan& plan);

  int32_t BlocksFor(int32_t tokens) const;
  int32_t Capacity(const Sequence& sequence) const;
  bool Reserve(Sequence& sequence, int32_t tokens);
  bool ReserveByPausing(Sequence& sequence, int32_t tokens, StepPlan& plan);
  bool PauseLast(const Sequence& needy, StepPlan& plan);
  bool Pause(Sequence& sequence, StepPlan& plan);
  int32_t PrefillBacklog() const;
  int32_t LeastRows(const Sequence& sequence, int32_t start, int32_t remaining) const;
  bool MayReuse(const Sequence& sequence) const;

  const SchedulerLimits limits_;
  StepBounds bounds_;
  KvCache& kv_;
  Speculation& speculation_;

  std::vector<Sequence*> waiting_;  // in the order in which they start
  std::vector<Sequence*> active_;   // in the order in which they are planned; the last pauses first
  std::vector<FreeSlot> free_slots_;      // last those in which a request ended
  int32_t requests_ = 0;                  // that wait or hold a slot
  int32_t requests_with_many_slots_ = 0;  // with two or more slots
  uint64_t plans_ = 0;
  uint64_t turns_ = 0;
  uint64_t starts_ = 0;
  int64_t preemptions_ = 0;
  int32_t paused_ = 0;

  // Scratch of one Plan.
  Budget budget_;
  std::vector<Sequence*> decoding_;
  std::vector<DraftCandidate> candidates_;  // of decoding_, in its order
  std::vector<Sequence*> moved_;            // choices whose place in the queue changes
};

}  // namespace tandem
