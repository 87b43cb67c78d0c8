#include "quantize/input_scales.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tandem {
namespace {

using Element = QuantScheme::Element;

InputStatistics Statistics(const std::vector<std::vector<float>>& rows) {
  InputStatistics inputs;
  inputs.largest.resize(rows.front().size());
  inputs.sum.resize(rows.front().size());
  for (const std::vector<float>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      inputs.largest[i] = std::max(inputs.largest[i], std::abs(row[i]));
      inputs.sum[i] += std::abs(row[i]);
    }
    inputs.rows.insert(inputs.rows.end(), row.begin(), row.end());
  }
  inputs.num_rows = inputs.kept_rows = static_cast<int64_t>(rows.size());
  return inputs;
}

TEST(InputScales, SmoothQuantDividesTheRangeByItsFormula) {
  const InputStatistics inputs = Statistics({{16, 1, 4, 1}, {-4, 1, 1, 1}});
  const GroupWeights weights{2, 4, DType::kF32, {1, 0.5f, 1, 4, -4, 0.25f, 1, 4}};
  const int64_t alone[] = {0, 1, 2, 3};
  std::vector<float> largest;
  RaiseToLargest(weights, largest);
  const std::vector<float> scales = SmoothQuantScales(inputs, largest, alone, 0.5);
  EXPECT_FLOAT_EQ(scales[0], 2.0f);  // sqrt(16 / 4)
  EXPECT_FLOAT_EQ(scales[1], std::sqrt(1 / 0.5f));
  EXPECT_FLOAT_EQ(scales[3], 0.5f);  // sqrt(1 / 4)
  const int64_t by_two[] = {0, 0, 1, 1};
  const std::vector<float> shared = SmoothQuantScales(inputs, largest, by_two, 0.5);
  EXPECT_FLOAT_EQ(shared[0], 2.0f);
  EXPECT_EQ(shared[0], shared[1]);
  EXPECT_EQ(shared[2], shared[3]);
}

// A few inputs are a hundred times larger than the others: their weights must round well.
TEST(InputScales, AwqProtectsTheWeightsOfLargeInputs) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> rows(64, std::vector<float>(128));
  for (std::vector<float>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) row[i] = normal(random) * (i % 32 == 5 ? 100.0f : 1.0f);
  }
  GroupWeights weights{32, 128, DType::kF32, std::vector<float>(size_t{32} * 128)};
  for (float& value : weights.values) value = normal(random);
  std::vector<int64_t> alone(128);
  for (size_t i = 0; i < alone.size(); ++i) alone[i] = static_cast<int64_t>(i);
  const auto backend = ops::MakeCpuBackend({.num_threads = 1}).value();
  ThreadPool pool(2, /*pin=*/false);
  const InputStatistics inputs = Statistics(rows);
  const QuantScheme scheme = {Element::kInt4, 1, 128};
  AwqSearch search(inputs, alone, /*powers_of_two=*/false, scheme, *backend, pool);
  ASSERT_TRUE(search.Add(weights).ok());
  const auto scales = search.Best();
  ASSERT_TRUE(scales.ok()) << scales.status().message();
  EXPECT_GT((*scales)[5], 2.0f * (*scales)[6]);
}

TEST(InputScales, ClippingGivesUpAnOutlierThatNoInputReads) {
  std::vector<std::vector<float>> rows(16, std::vector<float>(64));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (std::vector<float>& row : rows) {
    for (size_t i = 1; i < row.size(); ++i) row[i] = normal(random);  // input 0 is always zero
  }
  GroupWeights weights{1, 64, DType::kF32, std::vector<float>(64)};
  for (float& value : weights.values) value = normal(random);
  weights.values[0] = 8.0f;
  ThreadPool pool(1, /*pin=*/false);
  const std::vector<float> ones(64, 1.0f);
  const std::vector<float> shares =
      AwqClipShares(Statistics(rows), ones, weights, {Element::kInt4, 1, 64}, pool);
  ASSERT_EQ(shares.size(), 1u);
  EXPECT_LT(shares[0], 0.7f);
}

}  // namespace
}  // namespace tandem
