#include "model/dummy_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "model/testing/decoder_driver.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

ModelSpec SmallSpec(DType dtype) {
  ModelSpec spec;
  spec.family = "llama";
  spec.dtype = dtype;
  spec.vocab_size = 1000;
  spec.hidden_size = 128;
  LayerSpec layer;
  layer.attention.num_heads = 8;
  layer.attention.num_kv_heads = 2;
  layer.attention.head_dim = layer.attention.rope.dim = 16;
  layer.mlp.intermediate_size = 256;
  spec.layers.assign(4, layer);
  spec.max_positions = 128;
  spec.tied_head = true;
  return spec;
}

double SquaredLength(const Tensor& matrix, int64_t row) {
  double sum = 0.0;
  for (int64_t i = row * matrix.dim(1); i < (row + 1) * matrix.dim(1); ++i) {
    const double value =
        matrix.dtype == DType::kF32 ? matrix.As<float>()[i] : ToFloat(matrix.As<BFloat16>()[i]);
    sum += value * value;
  }
  return sum;
}

std::unique_ptr<DummySource> Make(ModelSpec spec, DummyOptions options = {}) {
  options.num_threads = 2;
  auto source = DummySource::FromSpec(std::move(spec), options);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return std::move(*source);
}

// Greedy decoding of a prompt gives what the map says; `check` sees the loaded weights.
void ExpectGreedyFollowsTheMap(
    DummySource& source, int steps,
    const std::function<void(const Weights&, ops::Backend&)>& check = [](const auto&, auto&) {}) {
  auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false, .isa = "auto"});
  ASSERT_TRUE(backend.ok());
  const auto weights = LoadWeights(source, **backend, 128);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  check(**weights, **backend);
  DecoderTestDriver driver(*weights, **backend, 100);
  std::vector<int32_t> tokens = {17, 999, 0, 512, 5};
  for (int step = 0; step < steps; ++step) {
    const int32_t next = ArgMax(driver.Feed(tokens).back());
    ASSERT_EQ(next, source.map().Expected(tokens.back())) << "step " << step;
    tokens = {next};
  }
}

class DummyWeightsTest : public ::testing::TestWithParam<DType> {};

TEST_P(DummyWeightsTest, GreedyDecodingFollowsTheMap) {
  const auto source = Make(SmallSpec(GetParam()), {.seed = 3});
  ExpectGreedyFollowsTheMap(*source, 40);
}

// Whatever a layer does with the residual stream, its blocks add next to nothing to it.
TEST_P(DummyWeightsTest, GreedyDecodingFollowsTheMapInEveryFormOfLayer) {
  for (const Residual residual : {Residual::kSandwich, Residual::kPostNorm, Residual::kParallel,
                                  Residual::kParallelNorms, Residual::kNormed}) {
    for (const double offset : {0.0, 1.0}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(residual) << ", offset " << offset);
      ModelSpec spec = SmallSpec(GetParam());
      spec.norm.weight_offset = offset;
      spec.norm.kind = offset == 0.0 ? NormSpec::Kind::kLayer : NormSpec::Kind::kRms;
      spec.norm.bias = offset == 0.0;
      spec.embedding_scale = 2.0;
      spec.position_rows = spec.max_positions;
      for (LayerSpec& layer : spec.layers) {
        layer.residual = residual;
        layer.alpha = 7.5;
        layer.mlp.gated = offset == 0.0;
        layer.mlp.activation = ops::Activation::kGelu;
      }
      const auto source = Make(std::move(spec), {.seed = 3});
      ExpectGreedyFollowsTheMap(*source, 20);
    }
  }
}

TEST_P(DummyWeightsTest, GreedyDecodingFollowsTheMapWithExperts) {
  ModelSpec spec = SmallSpec(GetParam());
  for (LayerSpec& layer : spec.layers) {
    layer.moe = {.num_experts = 6,
                 .expert = {.intermediate_size = 40},
                 .routing = {.function = ops::RoutingRule::Function::kSigmoid,
                             .experts_per_token = 2,
                             .renormalise = true,
                             .scale = 2.5f},
                 .correction = true,
                 .shared_gate = true};
  }
  const auto source = Make(std::move(spec), {.seed = 3});
  const Tensor one = source->Get({WeightRole::kExpertUp, 0, WeightPart::kWeight, 1}).value();
  const Tensor other = source->Get({WeightRole::kExpertUp, 0, WeightPart::kWeight, 2}).value();
  EXPECT_NE(std::memcmp(one.data, other.data, static_cast<size_t>(one.NumBytes())), 0);
  source->Release();
  ExpectGreedyFollowsTheMap(*source, 20, [](const Weights& weights, ops::Backend& backend) {
    EXPECT_EQ(WeightBytes(weights.spec, backend, 128), weights.bytes);
    EXPECT_LT(weights.step_bytes, weights.bytes);
  });
}

TEST_P(DummyWeightsTest, GreedyDecodingFollowsTheMapOverLatents) {
  for (const int64_t query_rank : {0, 40}) {
    SCOPED_TRACE(query_rank);
    ModelSpec spec = SmallSpec(GetParam());
    for (LayerSpec& layer : spec.layers) {
      AttentionSpec& attention = layer.attention;
      attention.latent = {.rank = 48, .query_rank = query_rank, .key_dim = 24, .value_dim = 20};
      attention.num_kv_heads = 1;
      attention.head_dim = 48 + attention.rope.dim;
      attention.scale = 0.15;
    }
    const auto source = Make(std::move(spec), {.seed = 3});
    ExpectGreedyFollowsTheMap(*source, 20, [](const Weights& weights, ops::Backend& backend) {
      EXPECT_EQ(WeightBytes(weights.spec, backend, 128), weights.bytes);
      EXPECT_LT(weights.step_bytes, weights.bytes);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DummyWeightsTest,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16));

TEST(DummyWeights, TheMapIsOneCycleThroughTheVocabulary) {
  for (const int64_t vocab : {2, 3, 10, 1000, 4096}) {
    ModelSpec spec = SmallSpec(DType::kBF16);
    spec.vocab_size = vocab;
    const auto source = Make(spec);
    std::set<int32_t> seen;
    int32_t token = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      seen.insert(token);
      token = source->map().Expected(token);
    }
    EXPECT_EQ(token, 0);
    EXPECT_EQ(seen.size(), static_cast<size_t>(vocab));
  }
}

TEST(DummyWeights, ADraftAgreesOnTheShareAskedFor) {
  ModelSpec spec = SmallSpec(DType::kBF16);
  spec.vocab_size = 20000;
  const auto target = Make(spec, {.seed = 1});
  spec.hidden_size = 64;
  spec.vocab_size = 20480;  // would be padded
  const auto draft = Make(spec, {.seed = 1, .agreement = 0.7, .map_tokens = 20000});
  int agreed = 0;
  for (int32_t token = 0; token < 20000; ++token) {
    const bool same = draft->map().Expected(token) == target->map().Expected(token);
    EXPECT_EQ(same, draft->map().Agrees(token));
    agreed += same ? 1 : 0;
  }
  EXPECT_NEAR(agreed / 20000.0, 0.7, 0.02);
}

TEST(DummyWeights, ADraftFollowsItsOwnMap) {
  const auto source =
      Make(SmallSpec(DType::kBF16), {.seed = 3, .agreement = 0.5, .map_tokens = 900});
  auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false, .isa = "auto"});
  ASSERT_TRUE(backend.ok());
  const auto weights = LoadWeights(*source, **backend, 128);
  ASSERT_TRUE(weights.ok());
  DecoderTestDriver driver(*weights, **backend, 100);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 60; ++i) tokens.push_back(i * 13);
  tokens.push_back(950);  // outside the map
  const auto logits = driver.Feed(tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(ArgMax(logits[i]), source->map().Expected(tokens[i])) << tokens[i];
  }
}

TEST(DummyWeights, LayerWeightsUseSignsMantissasAndManyBinades) {
  const auto source = Make(SmallSpec(DType::kBF16));
  const auto tensor = source->Get({WeightRole::kGate, 1});
  ASSERT_TRUE(tensor.ok());
  std::set<int> exponents;
  std::set<int> mantissas;
  int negative = 0;
  for (int64_t i = 0; i < tensor->NumElements(); ++i) {
    const uint16_t bits = tensor->As<BFloat16>()[i].bits;
    exponents.insert(bits >> 7 & 0xff);
    mantissas.insert(bits & 0x7f);
    negative += bits >> 15;
  }
  EXPECT_EQ(exponents.size(), 16u);
  EXPECT_EQ(mantissas.size(), 128u);
  EXPECT_NEAR(static_cast<double>(negative) / static_cast<double>(tensor->NumElements()), 0.5,
              0.02);
  EXPECT_EQ(CountNonFinite(*tensor), 0);
}

// As a real model's: a softmax over scores of hundreds chooses one key only.
TEST(DummyWeights, ScoresHaveOrdinarySize) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t hidden : {2048, 8192}) {
      ModelSpec spec = SmallSpec(dtype);
      spec.hidden_size = hidden;
      constexpr int64_t kHeadDim = 64;
      for (LayerSpec& layer : spec.layers) {
        layer.attention.num_heads = 2;
        layer.attention.head_dim = kHeadDim;
      }
      const auto source = Make(spec);
      const Tensor query = source->Get({WeightRole::kQuery, 1}).value();
      const Tensor key = source->Get({WeightRole::kKey, 1}).value();
      // Hidden states after a norm are about 1, so a product's deviation is the norm of the
      // weights' row.
      double squares = 0.0;
      for (int64_t dim = 0; dim < kHeadDim; ++dim) {
        squares += SquaredLength(query, dim) * SquaredLength(key, dim);
      }
      const double deviation = std::sqrt(squares / kHeadDim);
      EXPECT_GT(deviation, 1.0) << DTypeName(dtype) << ", " << hidden;
      EXPECT_LT(deviation, 20.0) << DTypeName(dtype) << ", " << hidden;
    }
  }
}

TEST(DummyWeights, TheSameWhateverTheOrderAndThreads) {
  const auto one = Make(SmallSpec(DType::kF16), {.seed = 5});
  auto two = DummySource::FromSpec(SmallSpec(DType::kF16), {.seed = 5, .num_threads = 1});
  ASSERT_TRUE(two.ok());
  ASSERT_TRUE(one->Get({WeightRole::kUp, 0}).ok());
  one->Release();
  const auto a = one->Get({WeightRole::kDown, 2});
  const auto b = (*two)->Get({WeightRole::kDown, 2});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0);
}

TEST(DummyWeights, AModelInFp8IsMadeInItsOtherType) {
  ModelSpec spec = SmallSpec(DType::kBF16);
  spec.quantization = Fp8Scheme(QuantScheme::Inputs::kStatic);
  const auto source = Make(spec);
  EXPECT_TRUE(source->spec().quantization.is_plain());
  EXPECT_EQ(source->Get({WeightRole::kUp, 0})->dtype, DType::kBF16);
}

TEST(DummyWeights, RefusesAMapOrShareThatCannotBe) {
  EXPECT_FALSE(DummySource::FromSpec(SmallSpec(DType::kBF16), {.agreement = 1.5}).ok());
  EXPECT_FALSE(DummySource::FromSpec(SmallSpec(DType::kBF16), {.agreement = NAN}).ok());
  EXPECT_FALSE(DummySource::FromSpec(SmallSpec(DType::kBF16), {.map_tokens = 1001}).ok());
  EXPECT_FALSE(DummySource::FromSpec(ModelSpec()).ok());
}

}  // namespace
}  // namespace tandem
