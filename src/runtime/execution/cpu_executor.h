// CpuExecutor: an executor in one process, on a backend whose work is done when a call returns.
// Holds the slots and both models' passes; what it does with them is in its parts: Proposer and
// Verifier. Its state advances when a step is enqueued, results wait for Land: so the engine meets
// lengths it does not know yet, as on a device.
#pragma once

#include <array>
#include <memory>

#include "runtime/execution/executor.h"
#include "runtime/execution/executor_config.h"
#include "runtime/execution/proposer.h"
#include "runtime/execution/slot_state.h"
#include "runtime/execution/verifier.h"

namespace tandem {

class CpuExecutor final : public Executor {
 public:
  // The meter's targets and `ops` outlive the executor.
  CpuExecutor(const ExecutorConfig& config, ops::Ops& ops, ExecutorModels models,
              const CostMeter& meter);

  void AddSequence(int32_t slot, const SlotInit& init) override;
  void RemoveSequence(int32_t slot) override;
  void Propose(const BatchPlan& plan) override;
  void Run(const BatchPlan& plan) override;
  void Sample(const BatchPlan& plan) override;
  Status Land(StepResult& result) override;

 private:
  void ApplyBlocks(const BatchPlan& plan);

  ops::Ops& ops_;
  ExecutorModels models_;
  SlotTable slots_;
  Proposer proposer_;
  Verifier verifier_;
  std::array<StepResult, kMaxLaunched> results_;  // a ring
  uint64_t sampled_ = 0;                          // steps put into it
  uint64_t landed_ = 0;                           // steps taken out of it
};

}  // namespace tandem
