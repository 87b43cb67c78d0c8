#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/families/families.h"
#include "tensor/buffer.h"

namespace tandem {
namespace {

RopeSpec Base(double theta, int64_t dim) { return {.dim = dim, .theta = theta, .scaling = {}}; }

TEST(Rope, PlainFrequenciesFallGeometrically) {
  const auto frequencies = RopeFrequencies(Base(10000.0, 8), 2048);
  ASSERT_EQ(frequencies.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(frequencies[i], std::pow(10.0, -static_cast<double>(i)));
  }
}

TEST(Rope, LinearDividesEveryFrequency) {
  RopeSpec rope = Base(10000.0, 8);
  rope.scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4.0};
  EXPECT_DOUBLE_EQ(RopeFrequencies(rope, 2048)[0], 0.25);
}

TEST(Rope, DynamicChangesTheBaseBeyondTheTrainedContext) {
  RopeSpec rope = Base(10000.0, 8);
  rope.scaling = {
      .kind = RopeScaling::Kind::kDynamic, .factor = 2.0, .original_max_positions = 2048};
  EXPECT_EQ(RopeFrequencies(rope, 2048), RopeFrequencies(Base(10000.0, 8), 2048));
  // n = 2 M, s = 2: base * (2 * 2 - 1)^(8 / 6).
  const double base = 10000.0 * std::pow(3.0, 8.0 / 6.0);
  EXPECT_NEAR(RopeFrequencies(rope, 4096)[1], std::pow(base, -0.25), 1e-15);
}

// The effect of a config's own context on the angles when all of it is served.
TEST(Rope, DynamicTakesEffectOverTheContextThatAConfigGives) {
  const auto spec = SpecFromHfConfig(
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 2}})");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const AttentionSpec& attention = spec->layers.front().attention;
  const double base = 10000.0 * std::pow(3.0, 16.0 / 14.0);
  EXPECT_NEAR(RopeFrequencies(attention.rope, spec->max_positions)[1], std::pow(base, -0.125),
              1e-15);
}

// Qwen's formula: alpha = max(2^ceil(log2(n / M) + 1) - 1, 1).
TEST(Rope, NtkStepsChangeTheBaseWhereTheLengthDoubles) {
  RopeSpec rope = Base(10000.0, 16);
  rope.scaling = {.kind = RopeScaling::Kind::kNtkSteps, .original_max_positions = 100};
  for (const auto& [length, alpha] :
       {std::pair{1, 1.0}, {100, 1.0}, {101, 3.0}, {200, 3.0}, {201, 7.0}, {800, 15.0}}) {
    const double base = 10000.0 * std::pow(alpha, 16.0 / 14.0);
    const int64_t step = NtkStep(100, length);
    EXPECT_NEAR(RopeFrequencies(rope, 800, step)[1], std::pow(base, -0.125), 1e-12) << length;
    EXPECT_EQ(NumRopeSteps(rope, length), step + 1);
  }
}

TEST(Rope, QueriesGrowWithTheirPosition) {
  EXPECT_TRUE(QueryFactors({}, 10).empty());
  const auto log_n = QueryFactors({.kind = QueryGrowth::Kind::kLogN, .length = 10}, 100);
  EXPECT_EQ(log_n[0], 1.0f);
  EXPECT_EQ(log_n[9], 1.0f);
  EXPECT_FLOAT_EQ(log_n[10], std::log(11.0f) / std::log(10.0f));
  EXPECT_FLOAT_EQ(log_n[99], 2.0f);
  const auto steps =
      QueryFactors({.kind = QueryGrowth::Kind::kSteps, .length = 10, .factor = 0.1}, 100);
  EXPECT_EQ(steps[8], 1.0f);
  EXPECT_FLOAT_EQ(steps[9], 1.0f + 0.1f * std::log(2.0f));
  EXPECT_FLOAT_EQ(steps[29], 1.0f + 0.1f * std::log(4.0f));
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  RopeSpec rope = Base(500000.0, 64);
  rope.scaling = {
      .kind = RopeScaling::Kind::kLlama3, .factor = 32.0, .original_max_positions = 8192};
  const auto plain = RopeFrequencies(Base(500000.0, 64), 2048);
  const auto scaled = RopeFrequencies(rope, 2048);
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * M_PI / plain[i];
    if (wavelength < 8192.0 / 4.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i]) << i;
    } else if (wavelength > 8192.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 32.0) << i;
    } else {
      EXPECT_LT(scaled[i], plain[i]) << i;
      EXPECT_GT(scaled[i], plain[i] / 32.0) << i;
    }
  }
}

// As Llama 4 has it.
TEST(Rope, Llama3StretchesAllOrNothingWhereNoWavesAreBetween) {
  RopeSpec rope = Base(500000.0, 64);
  rope.scaling = {.kind = RopeScaling::Kind::kLlama3,
                  .factor = 16.0,
                  .low_freq_factor = 1.0,
                  .high_freq_factor = 1.0,
                  .original_max_positions = 8192};
  const auto plain = RopeFrequencies(Base(500000.0, 64), 2048);
  const auto scaled = RopeFrequencies(rope, 2048);
  for (size_t i = 0; i < plain.size(); ++i) {
    const bool is_long = 2.0 * M_PI / plain[i] >= 8192.0;
    EXPECT_DOUBLE_EQ(scaled[i], is_long ? plain[i] / 16.0 : plain[i]) << i;
  }
}

TEST(Rope, TablesHoldCosAndSinOfTheAngle) {
  const Buffer cos = Buffer::OnHost(6 * 2 * sizeof(float));
  const Buffer sin = Buffer::OnHost(6 * 2 * sizeof(float));
  FillRopeTables(Base(10000.0, 4), 6, cos.View(DType::kF32, {6, 2}), sin.View(DType::kF32, {6, 2}));
  EXPECT_EQ(cos.As<float>()[0], 1.0f);
  EXPECT_EQ(cos.As<float>()[2 * 5], static_cast<float>(std::cos(5.0)));
  EXPECT_EQ(sin.As<float>()[2 * 5 + 1], static_cast<float>(std::sin(0.05)));
}

}  // namespace
}  // namespace tandem
