#include "runtime/execution/ranked_executor.h"

#include <fmt/format.h>

#include <utility>

namespace tandem {

RankedExecutor::RankedExecutor(RankParts leader, std::vector<std::unique_ptr<OtherRank>> others)
    : ranks_(std::move(leader.ranks)),
      leader_(std::move(leader.executor)),
      others_(std::move(others)) {}

// A step that the leader has only proposed never ends on the others.
RankedExecutor::~RankedExecutor() {
  ranks_->Fail(Unavailable("the engine has ended"));
  for (const auto& other : others_) other->End();
}

void RankedExecutor::Abandon() {
  ranks_->Fail(Unavailable("the engine has ended"));
  for (const auto& other : others_) other->Abandon();
}

void RankedExecutor::Tell() {
  for (const auto& other : others_) other->Send(message_);
}

void RankedExecutor::WarmUp(const std::function<void()>& steps) {
  WriteCall(RankCall::kWarmUp, message_);
  Tell();
  leader_->WarmUp(steps);
  WriteCall(RankCall::kWarmedUp, message_);
  Tell();
}

void RankedExecutor::AddSequence(int32_t slot, const SlotInit& init,
                                 std::shared_ptr<TokenConstraint> constraint) {
  WriteAddSequence(slot, init, message_);
  Tell();
  leader_->AddSequence(slot, init, std::move(constraint));
}

void RankedExecutor::RemoveSequence(int32_t slot) {
  WriteRemoveSequence(slot, message_);
  Tell();
  leader_->RemoveSequence(slot);
}

void RankedExecutor::Propose(const BatchPlan& plan) {
  WriteStep(plan, message_);
  Tell();
  leader_->Propose(plan);
}

Status RankedExecutor::Land(StepResult& result) {
  if (!failure_.ok()) return failure_;
  WriteCall(RankCall::kLand, message_);
  Tell();
  failure_ = leader_->Land(result);
  if (failure_.ok()) failure_ = ranks_->status();
  if (failure_.ok()) failure_ = Compare(HashOf(result));
  if (!failure_.ok()) ranks_->Fail(failure_);
  return failure_;
}

Status RankedExecutor::Compare(uint64_t drawn) {
  for (size_t i = 0; i < others_.size(); ++i) {
    const std::optional<uint64_t> other = others_[i]->AwaitDrawn();
    // What a rank draws once another has failed is void.
    TANDEM_RETURN_IF_ERROR(ranks_->status());
    if (other != drawn)
      return Internal(fmt::format("rank {} drew other tokens than rank 0", i + 1));
  }
  return {};
}

}  // namespace tandem
