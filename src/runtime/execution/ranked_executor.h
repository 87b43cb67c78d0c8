// RankedExecutor: the executors of all ranks of a model as one. The first rank leads: it runs on
// the engine's thread and gives the results. The others run on threads of their own, get each call
// as a message (rank_messages.h) and never decide anything: the ranks put their logits together
// (Communicator) and draw the same tokens with the same noise, so that no draw is ever sent.
//
// A rank that fails ends the waits of all others and is the failure that Land reports. So is a rank
// that drew other tokens than the first: Land waits for all ranks and compares.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/rank_messages.h"

namespace tandem {

class RankThread;

struct RankParts {
  std::shared_ptr<Communicator> ranks;  // outlives the executor
  std::unique_ptr<Executor> executor;
};

class RankedExecutor final : public Executor {
 public:
  // In the order of the ranks, at least one. `max_batch_size`: slots of each.
  RankedExecutor(std::vector<RankParts> parts, int32_t max_batch_size);
  ~RankedExecutor() override;

  void BindThread() override { leader().BindThread(); }
  void WarmUp(const std::function<void()>& steps) override;
  void AddSequence(int32_t slot, const SlotInit& init,
                   std::shared_ptr<TokenConstraint> constraint) override;
  void RemoveSequence(int32_t slot) override;
  void Propose(const BatchPlan& plan) override;
  void Run(const BatchPlan& plan) override { leader().Run(plan); }
  void Sample(const BatchPlan& plan) override { leader().Sample(plan); }
  Status Land(StepResult& result) override;

 private:
  Executor& leader() { return *parts_.front().executor; }
  void Tell();
  Status Compare(uint64_t drawn);

  std::vector<RankParts> parts_;
  std::vector<std::unique_ptr<RankThread>> others_;
  RankMessage message_;
  Status failure_;
};

}  // namespace tandem
