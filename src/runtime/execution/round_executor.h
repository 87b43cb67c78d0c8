// RoundExecutor: the executor. The state of the sequences lies in backend memory, and what a round
// does to it is ops::RoundOps: the plan goes there in one copy, rows, drafts, draws and lengths are
// made there, and the results come back in one copy, after which the step's mark stands.
//
// On a device a step is enqueued as a whole and the host reads nothing in between; Land waits for
// the mark. Steps that only decode run as graphs on buckets of rows, steps with prompts kernel by
// kernel; the plan bounds the numbers that only the device knows, and rows beyond the real count do
// nothing.
//
// On the host (ExecutorConfig::on_host) the rows are read before each pass, so that passes have
// exactly these rows.
//
// The results carry the times of the step's parts (StepTimes). On the host they are the clock's, of
// each pass with the rows it had. On a device they lie between marks that have passed when the step
// has ended, so that nobody waits for them: the draft passes together and the target, with the rows
// of the plan, and only of a step that computes no prompt.
//
// One thing always needs the host: a TokenConstraint. Sample of a step with a constrained sequence
// waits for the previous step and for the drafts, and sends the masks of the rows while the target
// computes them. A mask that takes longer than a few milliseconds puts off the draw of its own
// sequence; the others go on (ConstraintMasks). In token match the drafts need no mask, because one
// that violates the constraint does not equal the target's draw; the host draws them under masks
// all the same, because more of them are accepted then. In ratio mode masks are necessary, so a
// device drafts nothing under a constraint (SchedulerLimits::drafts_constrained).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ops/backend.h"
#include "runtime/execution/constraint_masks.h"
#include "runtime/execution/device_graphs.h"
#include "runtime/execution/device_memory.h"
#include "runtime/execution/device_slots.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/executor_config.h"

namespace tandem {

// Upper bounds of the lengths of a pass's ranges; attention is planned for them.
struct RangeLengths {
  int32_t longest = 0;  // 0: not known
  ops::ChunkBounds chunks = {};

  // Adds a range of `least` to `most` rows, or of none, with a context of at most `keys`; decode:
  // it is not a chunk of a prompt.
  void Add(int32_t least, int32_t most, int64_t keys, bool decode);
  // No sequence computes a chunk of a prompt.
  bool decodes() const { return chunks.num_seqs == 0; }
};

class RoundExecutor final : public Executor {
 public:
  // The backend outlives the executor. A pass's logits must keep their address from call to call
  // (graphs hold it). RESOURCE_EXHAUSTED if the backend has too little memory. The clock, which
  // times passes on the host, outlives the executor.
  static Result<std::unique_ptr<RoundExecutor>> Create(const ExecutorConfig& config,
                                                       ops::Backend& backend, ExecutorModels models,
                                                       const Clock& clock);
  ~RoundExecutor() override;

  void BindThread() override { backend_.BindThread(); }
  void WarmUp(const std::function<void()>& steps) override { backend_.WarmUp(steps); }
  void AddSequence(int32_t slot, const SlotInit& init,
                   std::shared_ptr<TokenConstraint> constraint) override;
  void RemoveSequence(int32_t slot) override;
  void Propose(const BatchPlan& plan) override;
  void Run(const BatchPlan& plan) override;
  void Sample(const BatchPlan& plan) override;
  Status Land(StepResult& result) override;

  // Host memory that steps copy from and to; plain memory unless the backend pins it.
  int64_t pinned_bytes() const {
    return memory_->pinned_bytes() + device_slots_->pinned_bytes() +
           (models_.host_blocks ? models_.host_blocks->bytes() : 0);
  }

 private:
  // The size of a step according to its plan: upper bounds.
  struct Shape {
    int32_t items = 0;
    int32_t draft_rows = 0;
    int32_t draft_seqs = 0;
    int32_t draft_logits = 0;
    RangeLengths draft;
    int32_t max_drafts = 0;       // proposed for a sequence
    bool verifies = false;        // some sequence has drafts, which may be the client's
    bool by_probability = false;  // some are accepted by probability
    int32_t sent_rows = 0;        // of logits that clients sent
    int32_t target_rows = 0;
    int32_t target_logits = 0;
    RangeLengths target;
    bool constrained = false;
    int32_t kept = 0;  // rows of logits for clients
  };
  // A launched step.
  struct Step {
    uint64_t number = 0;  // the plan's
    int32_t items = 0;
    int32_t logits = 0;
    bool is_round = false;  // some sequence drafts and none computes a prompt
    // On a device without seconds, which are read from the marks when the step has ended.
    StepTimes times;
  };

  RoundExecutor(const ExecutorConfig& config, ops::Backend& backend, ExecutorModels models,
                const Clock& clock, std::unique_ptr<DeviceMemory> memory,
                std::unique_ptr<DeviceSlots> slots);

  void SendPlan(const BatchPlan& plan);
  void CopySent(ops::RoundItem& item);
  bool Replays() const;
  ops::RoundItem ItemOf(const SequencePlan& planned) const;
  void AddToShape(const ops::RoundItem& item);
  int32_t TakeDraftRows(const ops::RoundItem& item);
  void RunDrafts();
  void RunLaidDrafts();
  void DraftPass(const ops::PassBounds& bounds, const RangeLengths& lengths,
                 const ops::PassBounds& next);
  void TargetPass(const ops::PassBounds& bounds, const RangeLengths& lengths);
  void TargetForward(const ops::PassBounds& bounds, const RangeLengths& lengths);
  void DrawAndAccept(const ops::PassBounds& bounds, bool verifies);
  ops::PassBounds BoundsOf(int32_t rows, int32_t max_logits) const;
  void SendMasks(const BatchPlan& plan);
  void Quieten();
  void Note(const Status& failure);
  void TimeTarget();
  void NotePasses();
  void ReadMarks(uint64_t step);
  double SecondsSince(Nanos start) const;
  void Settle(uint64_t step);
  void SettleLaunched();
  Step& StepOf(uint64_t step) { return steps_[step % steps_.size()]; }
  StepTimes& times() { return StepOf(sampled_).times; }  // of the step being launched
  // A pass for every draft, and the target's.
  size_t max_passes() const { return static_cast<size_t>(config_.max_draft_len) + 1; }
  bool Full() const { return sampled_ - landed_ == steps_.size(); }
  // Marks of the results, and of the drafts that masks are made for.
  int MarkOf(uint64_t step) const { return static_cast<int>(step % steps_.size()); }
  int DraftsMarkOf(uint64_t step) const { return static_cast<int>(steps_.size()) + MarkOf(step); }
  // Marks of the start of a step and of its target's part.
  int BeginMarkOf(uint64_t step) const {
    return 2 * static_cast<int>(steps_.size()) + MarkOf(step);
  }
  int RunMarkOf(uint64_t step) const { return 3 * static_cast<int>(steps_.size()) + MarkOf(step); }

  const ExecutorConfig config_;
  ops::Backend& backend_;
  ExecutorModels models_;
  // The groups of the target's pool by which blocks they have, for copies.
  ops::KvPool whole_groups_;
  ops::KvPool window_groups_;
  const Clock& clock_;
  const std::unique_ptr<DeviceMemory> memory_;
  const std::unique_ptr<DeviceSlots> device_slots_;
  DeviceGraphs graphs_;
  ConstraintMasks masks_;
  // By slot: how the client's drafts are accepted.
  struct Sent {
    bool by_probability = false;
    float threshold = -1.0f;
    std::span<const float> logits;
  };
  std::vector<Sent> sent_;
  // By slot: upper bound of the tokens that the draft has yet to compute.
  std::vector<int32_t> draft_lag_;
  // By slot: the positions that its blocks have room for, and upper bounds of those that each model
  // has computed.
  std::vector<int32_t> room_;
  std::vector<ComputedLengths> computed_;

  // Of the current step, set by Propose.
  Shape shape_;
  ops::PassBounds target_bounds_;
  Nanos step_started_{0};
  Nanos target_started_{0};
  const float* draft_logits_ = nullptr;   // of the last draft pass; always the same
  const float* target_logits_ = nullptr;  // likewise

  std::vector<Step> steps_;  // a ring: one for each step that may be launched at once
  uint64_t sampled_ = 0;     // steps launched
  uint64_t settled_ = 0;     // steps whose results have been examined
  uint64_t landed_ = 0;      // steps returned by Land
  Status failure_;           // the device's first, reported by Land
};

}  // namespace tandem
