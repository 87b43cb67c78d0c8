#include "runtime/execution/ranked_executor.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "runtime/execution/rank_thread.h"

namespace tandem {

RankedExecutor::RankedExecutor(std::vector<RankParts> parts, int32_t max_batch_size)
    : parts_(std::move(parts)) {
  TANDEM_CHECK(!parts_.empty(), "an executor without ranks");
  for (size_t rank = 1; rank < parts_.size(); ++rank) {
    others_.push_back(
        std::make_unique<RankThread>(*parts_[rank].executor, *parts_[rank].ranks, max_batch_size));
  }
}

// A step that the leader has only proposed never ends on the others.
RankedExecutor::~RankedExecutor() {
  for (const RankParts& part : parts_) part.ranks->Fail(Unavailable("the engine has ended"));
  others_.clear();
}

void RankedExecutor::Tell() {
  for (const auto& other : others_) other->Send(message_);
}

void RankedExecutor::WarmUp(const std::function<void()>& steps) {
  WriteCall(RankCall::kWarmUp, message_);
  Tell();
  leader().WarmUp(steps);
  WriteCall(RankCall::kWarmedUp, message_);
  Tell();
}

void RankedExecutor::AddSequence(int32_t slot, const SlotInit& init,
                                 std::shared_ptr<TokenConstraint> constraint) {
  WriteAddSequence(slot, init, message_);
  Tell();
  leader().AddSequence(slot, init, std::move(constraint));
}

void RankedExecutor::RemoveSequence(int32_t slot) {
  WriteRemoveSequence(slot, message_);
  Tell();
  leader().RemoveSequence(slot);
}

void RankedExecutor::Propose(const BatchPlan& plan) {
  WriteStep(plan, message_);
  Tell();
  leader().Propose(plan);
}

Status RankedExecutor::Land(StepResult& result) {
  if (!failure_.ok()) return failure_;
  WriteCall(RankCall::kLand, message_);
  Tell();
  failure_ = leader().Land(result);
  Communicator& ranks = *parts_.front().ranks;
  if (failure_.ok()) failure_ = ranks.status();
  if (failure_.ok()) failure_ = Compare(HashOf(result));
  if (!failure_.ok()) ranks.Fail(failure_);
  return failure_;
}

Status RankedExecutor::Compare(uint64_t drawn) {
  for (size_t i = 0; i < others_.size(); ++i) {
    const std::optional<uint64_t> other = others_[i]->AwaitDrawn();
    // What a rank draws once another has failed is void.
    TANDEM_RETURN_IF_ERROR(parts_.front().ranks->status());
    if (other != drawn)
      return Internal(fmt::format("rank {} drew other tokens than rank 0", i + 1));
  }
  return {};
}

}  // namespace tandem
