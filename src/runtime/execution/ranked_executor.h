// RankedExecutor: the executors of all ranks of a model as one. The first rank leads: it runs on
// the engine's thread and gives the results. The others run on threads or in processes of their own
// (other_rank.h), get each call as a message (rank_messages.h) and never decide anything: the ranks
// put their logits together (Communicator) and draw the same tokens with the same noise, so that no
// draw is ever sent.
//
// A rank that fails ends the waits of all others and is the failure that Land reports. So is a rank
// that drew other tokens than the first: Land waits for all ranks and compares.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/other_rank.h"
#include "runtime/execution/rank_follower.h"
#include "runtime/execution/rank_messages.h"

namespace tandem {

class RankedExecutor final : public Executor {
 public:
  // `others`: from rank 1 on.
  RankedExecutor(RankParts leader, std::vector<std::unique_ptr<OtherRank>> others);
  ~RankedExecutor() override;

  void BindThread() override { leader_->BindThread(); }
  void WarmUp(const std::function<void()>& steps) override;
  void AddSequence(int32_t slot, const SlotInit& init,
                   std::shared_ptr<TokenConstraint> constraint) override;
  void RemoveSequence(int32_t slot) override;
  void Propose(const BatchPlan& plan) override;
  void Run(const BatchPlan& plan) override { leader_->Run(plan); }
  void Sample(const BatchPlan& plan) override { leader_->Sample(plan); }
  Status Land(StepResult& result) override;
  Status Health() const override { return ranks_->status(); }
  void Abandon() override;

 private:
  void Tell();
  Status Compare(uint64_t drawn);

  const std::shared_ptr<Communicator> ranks_;
  const std::unique_ptr<Executor> leader_;
  std::vector<std::unique_ptr<OtherRank>> others_;
  RankMessage message_;
  Status failure_;
};

}  // namespace tandem
