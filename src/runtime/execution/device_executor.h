// DeviceExecutor: an executor whose sequence state lies in backend memory. A step is enqueued as a
// whole: the plan goes to the device in one copy, rows, drafts, draws and lengths are made there
// (ops::RoundOps), and the results come back in one copy, after which the step's mark stands. The
// host reads nothing in between; Land waits for the mark. Steps that only decode run as graphs on
// buckets of rows, steps with prompts kernel by kernel; numbers that only the device knows are
// bounded by the plan, and what lies between is inert.
//
// One thing needs the host: a TokenConstraint. Sample of a step with a constrained sequence waits
// for the step before, commits its tokens and sends the masks; such a sequence drafts nothing.
//
// Passes are not timed: on a device the host's clock says when work was enqueued, and marks cannot
// tell the parts of a step apart. Prices are those measured at start.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "runtime/execution/device_graphs.h"
#include "runtime/execution/device_memory.h"
#include "runtime/execution/device_slots.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/executor_config.h"
#include "runtime/execution/row_masks.h"

namespace tandem {

class DeviceExecutor final : public Executor {
 public:
  // The backend outlives the executor. A pass's logits must stay where they are from call to call
  // (graphs hold the address). RESOURCE_EXHAUSTED when the backend's memory does not suffice.
  static Result<std::unique_ptr<DeviceExecutor>> Create(const ExecutorConfig& config,
                                                        ops::Backend& backend,
                                                        ExecutorModels models);
  ~DeviceExecutor() override;

  void BindThread() override { backend_.BindThread(); }
  void AddSequence(int32_t slot, const SlotInit& init) override;
  void RemoveSequence(int32_t slot) override;
  void Propose(const BatchPlan& plan) override;
  void Run(const BatchPlan& plan) override;
  void Sample(const BatchPlan& plan) override;
  Status Land(StepResult& result) override;

 private:
  // What the host keeps of a sequence.
  struct HostSlot {
    TokenConstraint* constraint = nullptr;
    const Request* request = nullptr;
    int32_t draft_lag = 0;  // tokens the draft has yet to compute, at most
  };
  // How large a step is, by its plan: upper bounds.
  struct Shape {
    int32_t items = 0;
    int32_t draft_rows = 0;
    int32_t draft_seqs = 0;
    int32_t draft_logits = 0;
    int32_t draft_query = 0;  // longest range of one sequence
    int32_t max_drafts = 0;
    int32_t target_rows = 0;
    int32_t target_logits = 0;
    int32_t target_query = 0;
    bool decodes = true;  // no sequence computes more than one known token
    bool constrained = false;
  };
  // A launched step.
  struct Step {
    uint64_t number = 0;  // the plan's
    int32_t items = 0;
    int32_t logits = 0;
  };

  DeviceExecutor(const ExecutorConfig& config, ops::Backend& backend, ExecutorModels models,
                 std::unique_ptr<DeviceMemory> memory, std::unique_ptr<DeviceSlots> slots);

  void SendPlan(const BatchPlan& plan);
  ops::RoundItem ItemOf(const SequencePlan& planned);
  void AddToShape(const ops::RoundItem& item);
  int32_t TakeDraftRows(const ops::RoundItem& item);
  void RunDrafts();
  void DraftPass(const ops::PassBounds& bounds, int32_t max_query_len, const ops::PassBounds& next);
  void TargetPass(const ops::PassBounds& bounds, int32_t max_query_len);
  void DrawAndAccept(const ops::PassBounds& bounds, bool verifies);
  ops::PassBounds BoundsOf(int32_t rows, int32_t max_logits) const;
  void SendMasks(const BatchPlan& plan);
  void Settle(uint64_t step);

  const ExecutorConfig config_;
  ops::Backend& backend_;
  ExecutorModels models_;
  const std::unique_ptr<DeviceMemory> memory_;
  const std::unique_ptr<DeviceSlots> device_slots_;
  DeviceGraphs graphs_;
  RowMasks masks_;
  std::vector<HostSlot> slots_;

  // Of the step at hand, set by Propose.
  Shape shape_;
  ops::PassBounds target_bounds_;
  const float* draft_logits_ = nullptr;   // of the last draft pass; always the same
  const float* target_logits_ = nullptr;  // likewise

  std::array<Step, kMaxLaunched> steps_;  // a ring
  uint64_t sampled_ = 0;                  // steps launched
  uint64_t settled_ = 0;                  // steps whose results have been looked at
  uint64_t landed_ = 0;                   // steps taken out
  Status failure_;                        // the device's first, told by Land
};

}  // namespace tandem
