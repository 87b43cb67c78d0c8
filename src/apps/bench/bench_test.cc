#include "apps/bench/bench.h"

#include <gtest/gtest.h>

#include "apps/bench/load.h"
#include "model/decoder/weights.h"

namespace tandem::apps {
namespace {

LoadRecord Record(int tokens, Nanos first, Nanos end) {
  LoadRecord record;
  record.choices = {std::vector<int32_t>(static_cast<size_t>(tokens))};
  record.first_token = first;
  record.end = end;
  record.usage.drafts_proposed = 10;
  record.usage.drafts_accepted = 4;
  return record;
}

TEST(BenchLimits, AStepReadsEveryExpertThatSomeRowChoosesOnce) {
  Weights weights;
  LayerSpec layer;
  layer.moe.num_experts = 4;
  layer.moe.routing.experts_per_token = 1;
  weights.spec.layers = {layer};
  weights.step_bytes = 1000;
  ops::LinearWeight in;
  in.dtype = DType::kBF16;
  in.rows = 20;
  in.cols = 5;
  ops::ExpertWeights& experts = weights.layers.emplace_back().moe.experts;
  experts.in.push_back(std::move(in));  // all are alike
  experts.down.emplace_back().dtype = DType::kBF16;
  experts.down.front().rows = 5;
  experts.down.front().cols = 10;
  EXPECT_DOUBLE_EQ(StepBytes(weights, 1), 1000);
  EXPECT_DOUBLE_EQ(StepBytes(weights, 2), 1000 + 0.75 * 300);  // the same one in one of four cases
  EXPECT_NEAR(StepBytes(weights, 100), 1000 + 3 * 300, 1e-6);
}

TEST(LoadReportTest, CountsTokensRatesAndDrafts) {
  constexpr Nanos kSecond = std::chrono::seconds(1);
  LoadReport report;
  report.records = {Record(11, kSecond, 2 * kSecond), Record(21, 3 * kSecond, 5 * kSecond)};
  report.wall = 4 * kSecond;
  EXPECT_EQ(report.OutputTokens(), 32);
  EXPECT_DOUBLE_EQ(report.OutputRate(), 8);
  EXPECT_DOUBLE_EQ(report.records[0].DecodeRate(), 10);
  EXPECT_DOUBLE_EQ(report.DecodeRate(2), 20);
  EXPECT_EQ(report.MeanFirstToken(), 2 * kSecond);
  EXPECT_DOUBLE_EQ(report.Acceptance(), 0.4);
  EXPECT_EQ(Record(1, kSecond, kSecond).DecodeRate(), 0);
  EXPECT_EQ(LoadReport().Acceptance(), 0);
  EXPECT_DOUBLE_EQ(report.DraftsPerToken(), 20.0 / 32);
  EXPECT_EQ(LoadReport().DraftsPerToken(), 0);
}

}  // namespace
}  // namespace tandem::apps
