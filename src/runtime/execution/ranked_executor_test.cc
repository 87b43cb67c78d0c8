#include "runtime/execution/ranked_executor.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "comm/in_process.h"

namespace tandem {
namespace {

// Notes its calls. A step draws its number for each sequence, plus `shift`; it meets the other
// ranks as a model would.
class NotingExecutor final : public Executor {
 public:
  NotingExecutor(Communicator& ranks, std::vector<std::string>& calls)
      : ranks_(ranks), calls_(calls) {}

  void BindThread() override { calls_.push_back("bind"); }
  void AddSequence(int32_t slot, const SlotInit& init,
                   std::shared_ptr<TokenConstraint> /*constraint*/) override {
    calls_.push_back("add " + std::to_string(slot) + " " + std::to_string(init.tokens.size()));
  }
  void RemoveSequence(int32_t slot) override { calls_.push_back("remove " + std::to_string(slot)); }
  void Propose(const BatchPlan& plan) override {
    calls_.push_back("propose " + std::to_string(plan.step));
  }
  void Run(const BatchPlan& plan) override {
    calls_.push_back("run " + std::to_string(plan.sequences.size()));
    int32_t step = static_cast<int32_t>(plan.step);
    ranks_.Broadcast(std::as_writable_bytes(std::span(&step, 1)));
  }
  void Sample(const BatchPlan& plan) override {
    calls_.push_back("sample");
    plans_.push_back(plan);
  }
  Status Land(StepResult& result) override {
    calls_.push_back("land");
    if (!failure.ok()) return failure;
    const BatchPlan& plan = plans_[landed_++];
    result.step = plan.step;
    result.sequences.clear();
    result.tokens.clear();
    for (const SequencePlan& sequence : plan.sequences) {
      result.sequences.push_back({.slot = sequence.slot, .num_tokens = 1});
      SampledToken& token = result.tokens.emplace_back();
      token.token = static_cast<int32_t>(plan.step) + shift;
    }
    return {};
  }

  int32_t shift = 0;
  Status failure;

 private:
  Communicator& ranks_;
  std::vector<std::string>& calls_;
  std::vector<BatchPlan> plans_;
  size_t landed_ = 0;
};

class RankedExecutorTest : public testing::Test {
 protected:
  RankedExecutorTest() {
    std::vector<RankParts> parts;
    for (auto& comm : MakeInProcessRanks(kRanks)) {
      std::shared_ptr<Communicator> ranks = std::move(comm);
      auto made = std::make_unique<NotingExecutor>(*ranks, calls_[parts.size()]);
      made_.push_back(made.get());
      parts.push_back({ranks, std::move(made)});
    }
    executor_ = std::make_unique<RankedExecutor>(std::move(parts), 4);
    executor_->BindThread();
  }

  BatchPlan Plan(uint64_t step) {
    BatchPlan plan;
    plan.step = step;
    plan.sequences = {{.slot = 2, .target_tokens = 1, .samples = true}};
    return plan;
  }
  // Launches and lands a step.
  Status Step(uint64_t step) {
    const BatchPlan plan = Plan(step);
    executor_->Propose(plan);
    executor_->Run(plan);
    executor_->Sample(plan);
    return executor_->Land(result_);
  }
  static constexpr size_t kRanks = 3;
  std::array<std::vector<std::string>, kRanks> calls_;
  std::vector<NotingExecutor*> made_;
  std::unique_ptr<RankedExecutor> executor_;
  StepResult result_;
};

TEST_F(RankedExecutorTest, EveryRankGetsTheCallsInTheirOrder) {
  SlotInit init;
  init.tokens = {1, 2, 3};
  executor_->AddSequence(2, init, nullptr);
  ASSERT_TRUE(Step(7).ok());
  EXPECT_EQ(result_.step, 7u);
  ASSERT_EQ(result_.tokens.size(), 1u);
  EXPECT_EQ(result_.tokens[0].token, 7);
  ASSERT_TRUE(Step(8).ok());
  executor_->RemoveSequence(2);
  executor_.reset();  // waits for the others
  EXPECT_EQ(calls_[0],
            (std::vector<std::string>{"bind", "add 2 3", "propose 7", "run 1", "sample", "land",
                                      "propose 8", "run 1", "sample", "land", "remove 2"}));
  for (const auto& calls : calls_) EXPECT_EQ(calls, calls_[0]);
}

TEST_F(RankedExecutorTest, ARankThatDrawsOtherTokensIsAFailureThatStays) {
  made_[1]->shift = 1;
  const Status failure = Step(1);  // whose tokens nobody gets
  EXPECT_EQ(failure.code(), Code::kInternal);
  EXPECT_EQ(failure.message(), "rank 1 drew other tokens than rank 0");
  EXPECT_EQ(executor_->Land(result_).message(), failure.message());
}

TEST_F(RankedExecutorTest, ARankWhoseDeviceIsLostIsAFailureThatNamesIt) {
  made_[2]->failure = Unavailable("the device is lost");
  const Status failure = Step(1);
  EXPECT_EQ(failure.code(), Code::kUnavailable);
  EXPECT_EQ(failure.message(), "rank 2: the device is lost");
}

TEST_F(RankedExecutorTest, EndsAlthoughTheOthersWaitForAStepThatTheFirstDoesNotRun) {
  executor_->Propose(Plan(1));
  executor_.reset();
}

}  // namespace
}  // namespace tandem
