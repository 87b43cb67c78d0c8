// The times that a step's result carries, on the host and on a device, and what is learnt from
// them.
#include "runtime/speculation/step_times.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <utility>

#include "ops/forwarding_backend.h"
#include "runtime/testing/forwarding_executor.h"
#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

// Passes take the time that the test says: the target's a second, and one more for each row; a
// draft's a hundredth of that.
constexpr double kTargetPass = 1.0;
constexpr double kDraftPass = 0.01;

class TimedPass final : public ForwardPass {
 public:
  TimedPass(std::unique_ptr<ForwardPass> inner, FakeClock& clock, double seconds)
      : inner_(std::move(inner)), clock_(clock), seconds_(seconds) {}
  Tensor Forward(const ops::BatchView& batch, const ops::KvPool& pool) override {
    const std::chrono::duration<double> taken(seconds_ * (1 + batch.num_rows));
    clock_.Advance(std::chrono::round<Nanos>(taken));
    return inner_->Forward(batch, pool);
  }
  int64_t vocab_size() const override { return inner_->vocab_size(); }

 private:
  const std::unique_ptr<ForwardPass> inner_;
  FakeClock& clock_;
  const double seconds_;
};

// A device whose marks show the time by that clock.
class TimedBackend final : public ops::ForwardingBackend {
 public:
  TimedBackend(ops::Backend& inner, const FakeClock& clock)
      : ForwardingBackend(inner), clock_(clock) {}
  void Mark(int mark) override {
    times_[static_cast<size_t>(mark)] = clock_.Now();
    ForwardingBackend::Mark(mark);
  }
  double SecondsBetween(int from, int to) override {
    return std::chrono::duration<double>(times_[static_cast<size_t>(to)] -
                                         times_[static_cast<size_t>(from)])
        .count();
  }

 private:
  const FakeClock& clock_;
  std::array<Nanos, kNumMarks> times_{};
};

// Keeps the times of all steps.
class RecordingExecutor final : public ForwardingExecutor {
 public:
  RecordingExecutor(std::unique_ptr<Executor> inner, std::vector<StepTimes>& times)
      : ForwardingExecutor(std::move(inner)), times_(times) {}
  Status Land(StepResult& result) override {
    const Status status = ForwardingExecutor::Land(result);
    times_.push_back(result.times);
    return status;
  }

 private:
  std::vector<StepTimes>& times_;
};

class StepTimesTest : public testing::TestWithParam<std::tuple<ExecutorKind, int32_t>> {
 protected:
  StepTimesTest() {
    setup_.options = SmallOptions();
    setup_.options.executor = std::get<0>(GetParam());
    setup_.options.steps_in_flight = std::get<1>(GetParam());
    setup_.backend = &backend_;
    setup_.wrap_pass = [this](std::unique_ptr<ForwardPass> pass) {
      const double seconds = std::exchange(is_target_, false) ? kTargetPass : kDraftPass;
      return std::make_unique<TimedPass>(std::move(pass), clock_, seconds);
    };
    setup_.wrap_executor = [this](std::unique_ptr<Executor> executor) {
      return std::make_unique<RecordingExecutor>(std::move(executor), times_);
    };
  }
  bool on_host() const { return std::get<0>(GetParam()) == ExecutorKind::kHost; }

  FakeClock clock_;
  TimedBackend backend_{TestBackend(), clock_};
  TestSetup setup_;
  bool is_target_ = true;
  std::vector<StepTimes> times_;
};

TEST_P(StepTimesTest, TellRowsAndSecondsOfTheDraftsAndOfTheTarget) {
  setup_.options.draft_mode = DraftMode::kFixed;
  setup_.options.fixed_draft_len = 3;
  RunRequests(*MakeTestEngine(setup_, clock_), {SimpleRequest({1, 2, 3, 4, 5}, 60)});
  EXPECT_TRUE(times_[0].passes.empty()) << "the prompt's rows skip the head";
  EXPECT_FALSE(times_[0].complete);
  EXPECT_EQ(times_[0].round_seconds, 0.0);
  // The second step: four rows of the target, and three draft passes, the first of which computes
  // the prompt too.
  const StepTimes& round = times_[1];
  ASSERT_EQ(round.passes.size(), on_host() ? 4 : 2);
  EXPECT_TRUE(round.complete);
  const PassTime& first = round.passes[0];
  EXPECT_EQ(first.model, ModelIndex::kDraft);
  EXPECT_EQ(first.rows, 1);
  EXPECT_EQ(first.catch_up, 5);
  EXPECT_FALSE(first.verifies);
  EXPECT_EQ(first.more, on_host() ? 0 : 2) << "a device times them together";
  EXPECT_NEAR(first.seconds, kDraftPass * (on_host() ? 1 + 6 : 3 + 6 + 2), 1e-6);
  for (size_t i = 1; on_host() && i < 3; ++i) {
    EXPECT_EQ(round.passes[i].model, ModelIndex::kDraft);
    EXPECT_EQ(round.passes[i].rows, 1);
    EXPECT_NEAR(round.passes[i].seconds, kDraftPass * 2, 1e-6);
  }
  const PassTime& target = round.passes.back();
  EXPECT_EQ(target.model, ModelIndex::kTarget);
  EXPECT_EQ(target.rows, 4);
  EXPECT_TRUE(target.verifies);
  EXPECT_NEAR(target.seconds, kTargetPass * 5, 1e-6);
  EXPECT_NEAR(round.round_seconds, kTargetPass * 5 + kDraftPass * (3 + 6 + 2), 1e-6);
}

TEST_P(StepTimesTest, OfAPlainStepAreTheTargetsAlone) {
  setup_.draft_model = false;
  RunRequests(*MakeTestEngine(setup_, clock_), {SimpleRequest({1, 2, 3, 4, 5}, 20)});
  ASSERT_EQ(times_[1].passes.size(), 1);
  EXPECT_EQ(times_[1].passes[0].rows, 1);
  EXPECT_FALSE(times_[1].passes[0].verifies);
  EXPECT_NEAR(times_[1].passes[0].seconds, kTargetPass * 2, 1e-6);
  EXPECT_EQ(times_[1].round_seconds, 0.0);
}

// A prompt of more tokens than a step has rows: the draft model computes it over several steps, and
// draws nothing after all but the last.
TEST_P(StepTimesTest, AreIncompleteWhereTheDraftModelOnlyCatchesUp) {
  setup_.options.draft_mode = DraftMode::kFixed;
  setup_.options.fixed_draft_len = 3;
  RunRequests(*MakeTestEngine(setup_, clock_), {SimpleRequest(CountingPrompt(200, 1), 20)});
  int32_t caught_up = 0;
  for (const StepTimes& times : times_) {
    const bool decodes = !times.passes.empty() && times.passes.back().rows == 1;
    if (!decodes) continue;
    ++caught_up;
    EXPECT_EQ(times.passes.size(), 1);
    EXPECT_FALSE(times.complete);
    if (caught_up == 2) break;
  }
  EXPECT_EQ(caught_up, 2);
}

// The start measured rows as nearly free; in truth each costs as much as a pass.
TEST_P(StepTimesTest, TeachThatDraftsDoNotPayWhateverTheStartMeasured) {
  setup_.options.draft_mode = DraftMode::kAdaptive;
  setup_.draft.share = 0.6;
  const auto engine = MakeTestEngine(setup_, clock_);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) requests.push_back(SimpleRequest({1 + i, 2}, 90));
  RunRequests(*engine, requests);
  const int64_t first = engine->Stats().drafts_proposed;
  EXPECT_GT(first, 0);
  for (int round = 0; round < 4; ++round) RunRequests(*engine, requests);
  const int64_t before = engine->Stats().drafts_proposed;
  RunRequests(*engine, requests);
  EXPECT_LT(engine->Stats().drafts_proposed - before, 20) << first << " at first";
}

INSTANTIATE_TEST_SUITE_P(Kinds, StepTimesTest,
                         testing::Combine(testing::Values(ExecutorKind::kHost,
                                                          ExecutorKind::kDevice),
                                          testing::Values(0, 1)),
                         [](const testing::TestParamInfo<std::tuple<ExecutorKind, int32_t>>& info) {
                           const bool on_host = std::get<0>(info.param) == ExecutorKind::kHost;
                           return std::string(on_host ? "host_" : "device_") +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tandem
