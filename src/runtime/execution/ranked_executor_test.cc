#include "runtime/execution/ranked_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>

#include "comm/in_process.h"
#include "comm/testing/join_in_threads.h"
#include "runtime/execution/rank_thread.h"
#include "runtime/execution/remote_rank.h"

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

enum class Kind : uint8_t { kThreads, kProcesses };

class RankedExecutorTest : public testing::TestWithParam<Kind> {
 protected:
  RankedExecutorTest() {
    auto [leader, others] = GetParam() == Kind::kThreads ? MakeThreads() : MakeProcesses();
    executor_ = std::make_unique<RankedExecutor>(std::move(leader), std::move(others));
    executor_->BindThread();
  }
  ~RankedExecutorTest() override { End(); }

  // Waits for the others.
  void End() {
    executor_.reset();
    for (std::thread& process : processes_) process.join();
    processes_.clear();
  }

  using Others = std::vector<std::unique_ptr<OtherRank>>;
  std::pair<RankParts, Others> MakeThreads() {
    std::vector<RankParts> parts;
    for (auto& comm : MakeInProcessRanks(kRanks)) parts.push_back(PartsOf(std::move(comm)));
    Others others;
    for (size_t rank = 1; rank < kRanks; ++rank) {
      others.push_back(std::make_unique<RankThread>(std::move(parts[rank]), kSlots));
    }
    return {std::move(parts.front()), std::move(others)};
  }
  // Threads that have what processes would have.
  std::pair<RankParts, Others> MakeProcesses() {
    std::vector<JoinedRanks> joined = JoinInThreads(kRanks);
    RankParts leader = PartsOf(std::move(joined.front().ranks));
    Others others;
    for (size_t rank = 1; rank < kRanks; ++rank) {
      others.push_back(
          std::make_unique<RemoteRank>(std::move(joined.front().links[rank - 1]), leader.ranks));
      processes_.emplace_back([link = std::shared_ptr<RankLink>(std::move(joined[rank].links[0])),
                               parts = PartsOf(std::move(joined[rank].ranks))]() mutable {
        static_cast<void>(FollowLeader(parts, *link, kSlots));
      });
    }
    return {std::move(leader), std::move(others)};
  }
  RankParts PartsOf(std::unique_ptr<Communicator> comm) {
    std::shared_ptr<Communicator> ranks = std::move(comm);
    auto executor = std::make_unique<NotingExecutor>(*ranks, calls_[made_.size()]);
    made_.push_back(executor.get());
    return {ranks, std::move(executor)};
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
  static constexpr int kRanks = 3;
  static constexpr int32_t kSlots = 4;
  std::vector<std::thread> processes_;
  std::array<std::vector<std::string>, size_t{kRanks}> calls_;
  std::vector<NotingExecutor*> made_;
  std::unique_ptr<RankedExecutor> executor_;
  StepResult result_;
};

TEST_P(RankedExecutorTest, EveryRankGetsTheCallsInTheirOrder) {
  SlotInit init;
  init.tokens = {1, 2, 3};
  executor_->AddSequence(2, init, nullptr);
  ASSERT_TRUE(Step(7).ok());
  EXPECT_EQ(result_.step, 7u);
  ASSERT_EQ(result_.tokens.size(), 1u);
  EXPECT_EQ(result_.tokens[0].token, 7);
  ASSERT_TRUE(Step(8).ok());
  executor_->RemoveSequence(2);
  End();
  EXPECT_EQ(calls_[0],
            (std::vector<std::string>{"bind", "add 2 3", "propose 7", "run 1", "sample", "land",
                                      "propose 8", "run 1", "sample", "land", "remove 2"}));
  for (const auto& calls : calls_) EXPECT_EQ(calls, calls_[0]);
}

TEST_P(RankedExecutorTest, ARankThatDrawsOtherTokensIsAFailureThatStays) {
  made_[1]->shift = 1;
  const Status failure = Step(1);  // whose tokens nobody gets
  EXPECT_EQ(failure.code(), Code::kInternal);
  EXPECT_EQ(failure.message(), "rank 1 drew other tokens than rank 0");
  EXPECT_EQ(executor_->Land(result_).message(), failure.message());
}

TEST_P(RankedExecutorTest, ARankWhoseDeviceIsLostIsAFailureThatNamesIt) {
  made_[2]->failure = Unavailable("the device is lost");
  const Status failure = Step(1);
  EXPECT_EQ(failure.code(), Code::kUnavailable);
  // A process tells its own log why.
  if (GetParam() == Kind::kThreads) {
    EXPECT_EQ(failure.message(), "rank 2: the device is lost");
  } else {
    EXPECT_THAT(failure.message(), testing::StartsWith("rank "));
  }
  EXPECT_EQ(executor_->Health().message(), failure.message());
}

TEST_P(RankedExecutorTest, EndsAlthoughTheOthersWaitForAStepThatTheFirstDoesNotRun) {
  executor_->Propose(Plan(1));
  End();
}

INSTANTIATE_TEST_SUITE_P(Kinds, RankedExecutorTest,
                         testing::Values(Kind::kThreads, Kind::kProcesses));

}  // namespace
}  // namespace tandem
