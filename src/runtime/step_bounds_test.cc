// The engine with enable_batch_size_tuning and enable_max_num_tokens_tuning: the bounds of a step
// follow what has ended, and hold.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

class StepBoundsTest : public testing::Test {
 protected:
  void SetUp() override {
    setup_.options = SmallOptions();
    setup_.options.max_batch_size = 200;
    setup_.options.max_num_tokens = 4096;
    setup_.options.max_queue_size = 1000;
    setup_.options.enable_batch_size_tuning = true;
    setup_.options.enable_max_num_tokens_tuning = true;
    setup_.num_blocks = 512;  // of 8 tokens
  }
  void Make() { engine_ = MakeTestEngine(setup_, clock_); }

  // 32 tokens each, of which the cache holds 128 at a time.
  static std::vector<Request> ShortPrompts(int count) {
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) requests.push_back(SimpleRequest(CountingPrompt(4, i), 28));
    return requests;
  }

  // Sends all at once; the most sequences that ran in one step.
  int32_t MostRunning(const std::vector<Request>& requests) {
    for (const Request& request : requests) EXPECT_TRUE(engine_->Submit(request).ok());
    Outputs outputs;
    int32_t most = 0;
    while (engine_->Step()) {
      most = std::max(most, engine_->Stats().running);
      ReadEvents(*engine_, outputs);
    }
    EXPECT_EQ(outputs.size(), requests.size());
    return most;
  }

  FakeClock clock_;
  TestSetup setup_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(StepBoundsTest, MoveWithTheSequencesThatEnd) {
  Make();
  EXPECT_EQ(engine_->Stats().bounds, (StepBounds{200, 4096}));
  RunRequests(*engine_, ShortPrompts(1));
  EXPECT_EQ(engine_->Stats().bounds, (StepBounds{128, 2048}));
  // Long prompts: the table asks for more tokens than the limit is.
  std::vector<Request> longer;
  for (int i = 0; i < 128; ++i) longer.push_back(SimpleRequest(CountingPrompt(8, i), 1));
  RunRequests(*engine_, longer);
  EXPECT_EQ(engine_->Stats().bounds, (StepBounds{200, 4096}));
}

TEST_F(StepBoundsTest, BoundTheSequencesOfAStep) {
  Make();
  RunRequests(*engine_, ShortPrompts(1));
  EXPECT_EQ(MostRunning(ShortPrompts(180)), 128);

  setup_.options.enable_batch_size_tuning = false;
  Make();
  RunRequests(*engine_, ShortPrompts(1));
  EXPECT_GT(MostRunning(ShortPrompts(180)), 128);
}

TEST_F(StepBoundsTest, StayAtTheLimitsWithoutTuning) {
  setup_.options.enable_batch_size_tuning = false;
  setup_.options.enable_max_num_tokens_tuning = false;
  Make();
  RunRequests(*engine_, ShortPrompts(3));
  EXPECT_EQ(engine_->Stats().bounds, (StepBounds{200, 4096}));
}

TEST_F(StepBoundsTest, BoundTheRowsOfAStep) {
  setup_.options.enable_batch_size_tuning = false;
  setup_.num_blocks = 1024;
  Make();
  RunRequests(*engine_, ShortPrompts(1));
  ASSERT_EQ(engine_->Stats().bounds.tokens, 2048);
  // 200 prompts of 19 tokens: without the bound one step computes them all.
  std::vector<Request> prompts;
  for (int i = 0; i < 200; ++i) {
    std::vector<int32_t> prompt = CountingPrompt(19, 0);
    prompt[0] = i / 40;
    prompt[1] = i % 40;
    prompts.push_back(SimpleRequest(prompt, 2));
    ASSERT_TRUE(engine_->Submit(prompts.back()).ok());
  }
  int32_t most = 0;
  Outputs outputs;
  while (engine_->Step()) {
    most = std::max(most, engine_->Stats().step.context_tokens);
    ReadEvents(*engine_, outputs);
  }
  EXPECT_GT(most, 1024);
  EXPECT_LE(most, 2048);
}

}  // namespace
}  // namespace tandem
