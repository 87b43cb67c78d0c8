#include "model/decoder/decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <tuple>

#include "model/testing/decoder_driver.h"
#include "model/testing/reference_decoder.h"
#include "model/testing/relative_error.h"
#include "model/weight_loader.h"
#include "ops/forwarding_backend.h"

namespace tandem {
namespace {

// Random weights of a size that keeps activations near 1, biases included.
class RandomSource final : public WeightSource {
 public:
  RandomSource(ModelSpec spec, uint32_t seed) : spec_(std::move(spec)), seed_(seed) {}
  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override {
    const bool bias = id.part == WeightPart::kBias;
    if (const auto found = tensors_.find(id); found != tensors_.end()) return View(found->second);
    const Shape shape = WeightShape(spec_, id);
    std::mt19937 random(seed_ + 1000 * static_cast<uint32_t>(id.layer) +
                        10 * static_cast<uint32_t>(id.role) + (bias ? 1 : 0));
    const bool norm = shape.rank() == 1 && !bias;
    const float deviation = shape.rank() == 2 ? 1.0f / std::sqrt(float(shape[1])) : 0.2f;
    std::normal_distribution<float> normal(norm ? 1.0f : 0.0f, deviation);
    std::vector<float> values(static_cast<size_t>(shape.NumElements()));
    for (float& value : values) value = normal(random);
    if (IsScale(id.part)) {
      for (float& value : values) value = std::abs(value) / 64.0f;
    }
    const DType dtype = WeightDType(spec_, id);
    Stored stored{shape, dtype, Buffer::OnHost(values.size() * SizeOf(dtype))};
    ConvertElements({values.data(), DType::kF32, shape, Device{}}, View(stored));
    return View(tensors_.emplace(id, std::move(stored)).first->second);
  }

 private:
  struct Stored {
    Shape shape;
    DType dtype;
    Buffer buffer;
  };
  static Tensor View(const Stored& stored) {
    return stored.buffer.View(stored.dtype, stored.shape);
  }
  ModelSpec spec_;
  uint32_t seed_;
  std::map<WeightId, Stored> tensors_;
};

ModelSpec TinySpec(DType dtype) {
  ModelSpec spec;
  spec.family = "llama";
  spec.dtype = dtype;
  spec.vocab_size = 101;
  spec.hidden_size = 48;
  LayerSpec layer;
  layer.attention.num_heads = 6;
  layer.attention.num_kv_heads = 2;
  layer.attention.head_dim = 16;  // 6 * 16 is not 48: the two widths are independent
  layer.attention.rope.dim = 16;
  layer.mlp.intermediate_size = 72;
  spec.layers.assign(3, layer);
  spec.max_positions = 64;
  return spec;
}

std::vector<int32_t> RandomTokens(int count, int64_t vocab) {
  std::mt19937 random(7);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

std::unique_ptr<ops::Backend> CpuBackend(const std::string& isa) {
  auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false, .isa = isa});
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  return std::move(*backend);
}

void SetKvHeads(ModelSpec& spec, int64_t heads) {
  for (LayerSpec& layer : spec.layers) layer.attention.num_kv_heads = heads;
}
void SetScaling(ModelSpec& spec, const RopeScaling& scaling) {
  for (LayerSpec& layer : spec.layers) layer.attention.rope.scaling = scaling;
}

// 16 of a head's query turn, after those of a key of its own.
void SetLatents(AttentionSpec& attention, int64_t query_rank) {
  attention.latent = {.rank = 24, .query_rank = query_rank, .key_dim = 12, .value_dim = 10};
  attention.num_kv_heads = 1;
  attention.head_dim = 24 + attention.rope.dim;
  attention.scale = 0.2;
}

struct Variant {
  const char* name;
  void (*change)(ModelSpec&);
};

const Variant kVariants[] = {
    {"grouped", [](ModelSpec&) {}},
    {"tied", [](ModelSpec& spec) { spec.tied_head = true; }},
    {"multi_head", [](ModelSpec& spec) { SetKvHeads(spec, 6); }},
    {"one_kv_head", [](ModelSpec& spec) { SetKvHeads(spec, 1); }},
    {"biases",
     [](ModelSpec& spec) {
       for (LayerSpec& layer : spec.layers) {
         layer.attention.qkv_bias = layer.attention.out_bias = layer.mlp.bias = true;
       }
     }},
    {"linear",
     [](ModelSpec& spec) { SetScaling(spec, {RopeScaling::Kind::kLinear, 4.0, 1.0, 4.0, 16}); }},
    {"llama3",
     [](ModelSpec& spec) { SetScaling(spec, {RopeScaling::Kind::kLlama3, 8.0, 1.0, 4.0, 32}); }},
    {"dynamic",
     [](ModelSpec& spec) { SetScaling(spec, {RopeScaling::Kind::kDynamic, 4.0, 1.0, 4.0, 16}); }},
    {"layers_differ",
     [](ModelSpec& spec) {
       spec.layers[1].attention.num_heads = 4;
       spec.layers[1].attention.qkv_bias = spec.layers[1].attention.out_bias = true;
       spec.layers[1].attention.rope.theta = 500.0;
       spec.layers[2].mlp = {.intermediate_size = 40, .bias = true};
     }},
    {"two_cache_groups",
     [](ModelSpec& spec) {
       spec.layers.push_back(spec.layers.front());
       spec.layers[1].attention.num_kv_heads = 3;
       spec.layers[1].attention.head_dim = 20;
       spec.layers[3].attention = spec.layers[1].attention;
     }},
    {"cache_scales", [](ModelSpec& spec) { spec.cache_scales = DType::kI8; }},
    {"latents",
     [](ModelSpec& spec) {
       for (LayerSpec& layer : spec.layers) SetLatents(layer.attention, 36);
       spec.layers[1].attention.qkv_bias = spec.layers[1].attention.out_bias = true;
     }},
    {"latents_beside_keys", [](ModelSpec& spec) { SetLatents(spec.layers[1].attention, 0); }},
};

class DecoderTest : public ::testing::TestWithParam<std::tuple<std::string, DType, Variant>> {};

TEST_P(DecoderTest, AgreesWithTheReferenceHoweverTheTokensAreFed) {
  const auto& [isa, dtype, variant] = GetParam();
  ModelSpec spec = TinySpec(dtype);
  variant.change(spec);
  RandomSource source(spec, 1);
  const auto backend = CpuBackend(isa);
  constexpr int kTokens = 45;
  const auto tokens = RandomTokens(kTokens, spec.vocab_size);
  const auto weights = LoadWeights(source, *backend, kTokens);
  ASSERT_TRUE(weights.ok()) << weights.status().message();

  DecoderTestDriver whole(*weights, *backend, kTokens);
  const auto logits = whole.Feed(tokens);
  const Matrix expected = ReferenceDecoder(source).Logits(tokens, kTokens);
  EXPECT_LT(RelativeError(logits, expected), dtype == DType::kF32 ? 1e-5 : 2e-2);

  // Chunks, single steps and a verification-sized range give exactly the same bits.
  DecoderTestDriver pieces(*weights, *backend, kTokens);
  std::vector<std::vector<float>> again;
  const std::span<const int32_t> all(tokens);
  size_t done = 0;
  for (const size_t count : {33u, 1u, 1u, 5u, 1u, 4u}) {
    for (auto& row : pieces.Feed(all.subspan(done, count))) again.push_back(std::move(row));
    done += count;
  }
  ASSERT_EQ(done, tokens.size());
  EXPECT_EQ(again, logits);
}

// Adds every product to the stream itself that may be, as a GPU does, and leaves of the rest of
// NormedRows only what its user must not read.
class AddingOps final : public ops::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  int added() const { return added_; }

  void ClearSquares(const Tensor& squares) override {
    std::memset(squares.data, 0, static_cast<size_t>(squares.NumBytes()));
  }
  void LinearAdd(const Tensor& x, const ops::LinearWeight& weight, ops::NormedRows& sum) override {
    inner_.Linear(x, weight, sum.delta);
    AddTo(sum);
  }
  void NormMlpAdd(const ops::NormedRows& x, const ops::LinearWeight& in_weight,
                  ops::Activation activation, const ops::LinearWeight& down_weight,
                  const Tensor& inner, const Tensor& activated, ops::NormedRows& sum) override {
    EXPECT_EQ(x.HasSum(), x.rows_are_factors);
    inner_.NormMlp(x, in_weight, activation, down_weight, inner, activated, sum.delta);
    AddTo(sum);
  }
  void NormLinearRopeStore(const ops::NormedRows& x, const ops::LinearWeight& weight,
                           const Tensor& qkv, const ops::RopeTable& rope,
                           const ops::BatchView& batch, const ops::KvGroup& kv,
                           int32_t layer) override {
    EXPECT_EQ(x.HasSum(), x.rows_are_factors);
    inner_.NormLinearRopeStore(x, weight, qkv, rope, batch, kv, layer);
  }

 private:
  void AddTo(ops::NormedRows& sum) {
    if (sum.squares.empty()) return;
    ++added_;
    auto* const squares = sum.squares.As<int64_t>();
    for (int32_t row = 0; row < ops::kMaxAddedRows; ++row) {
      EXPECT_EQ(squares[row], 0) << "squares that were not cleared, or of another norm";
      squares[row] = 1;
    }
    inner_.Add(sum.residual, sum.delta);
    for (const Tensor& unused : {sum.delta, sum.rows}) {
      std::memset(unused.data, 0xff, static_cast<size_t>(unused.NumBytes()));
    }
    sum.delta = {};
    sum.rows_are_factors = true;
  }

  int added_ = 0;
};
class AddingBackend final : public ops::ForwardingBackend {
 public:
  explicit AddingBackend(ops::Backend& inner) : ForwardingBackend(inner), ops_(inner.ops()) {}
  AddingOps& ops() override { return ops_; }

 private:
  AddingOps ops_;
};

TEST_P(DecoderTest, AStreamThatProductsAddToGivesTheSameLogits) {
  const auto& [isa, dtype, variant] = GetParam();
  struct Kind {
    const char* name;
    void (*change)(LayerSpec&);  // of the second of three layers
    int added;                   // products of a pass
  };
  const Kind kinds[] = {
      {"as it is", [](LayerSpec&) {}, 5},
      {"its norms after", [](LayerSpec& layer) { layer.residual = Residual::kPostNorm; }, 2},
      {"experts",
       [](LayerSpec& layer) {
         layer.moe.num_experts = 3;
         layer.moe.expert = {.intermediate_size = 24};
         layer.moe.routing.experts_per_token = 2;
       },
       4}};
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    ModelSpec spec = TinySpec(dtype);
    variant.change(spec);
    spec.layers.resize(3, spec.layers.front());
    kind.change(spec.layers[1]);
    RandomSource source(spec, 1);
    const auto backend = CpuBackend(isa);
    AddingBackend adding(*backend);
    constexpr int kTokens = 45;
    const auto tokens = RandomTokens(kTokens, spec.vocab_size);
    const auto weights = LoadWeights(source, *backend, kTokens);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    DecoderTestDriver plain(*weights, *backend, kTokens), added(*weights, adding, kTokens);
    size_t done = 0;
    int passes = 0;
    for (const size_t count : {16u, 1u, 17u, 5u, 6u}) {
      const auto next = std::span<const int32_t>(tokens).subspan(done, count);
      ASSERT_EQ(added.Feed(next), plain.Feed(next)) << count << " tokens after " << done;
      passes += count <= ops::kMaxAddedRows;
      done += count;
    }
    EXPECT_EQ(adding.ops().added(), kind.added * passes);
  }
}

// Random scales of the tests' weights are near 1/64: for int8 that covers values up to 2. An
// element near a tie may round otherwise than the reference's.
TEST_P(DecoderTest, ACacheOf8BitsGivesTheReferenceOnRoundedKeysAndValues) {
  const auto& [isa, dtype, variant] = GetParam();
  constexpr int kTokens = 45;
  const auto backend = CpuBackend(isa);
  for (const DType cache : {DType::kF8E4M3, DType::kI8}) {
    SCOPED_TRACE(DTypeName(cache));
    ModelSpec spec = TinySpec(dtype);
    variant.change(spec);
    if (cache == DType::kI8 && spec.has_latents()) continue;  // refused
    if (cache == DType::kI8) spec.cache_scales = cache;
    RandomSource source(spec, 1);
    const auto tokens = RandomTokens(kTokens, spec.vocab_size);
    const auto weights = LoadWeights(source, *backend, kTokens);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    DecoderTestDriver whole(*weights, *backend, kTokens, cache);
    const auto logits = whole.Feed(tokens);
    const auto rounded = dtype == DType::kF32 ? std::nullopt : std::optional(dtype);
    const Matrix expected =
        ReferenceDecoder(source, {.activations = rounded, .cache = cache}).Logits(tokens, kTokens);
    EXPECT_LT(RelativeError(logits, expected), dtype == DType::kF32 ? 1e-3 : 4e-2);
    const Matrix unrounded = ReferenceDecoder(source).Logits(tokens, kTokens);
    EXPECT_GT(RelativeError(logits, unrounded), 1e-3) << "nothing was rounded";

    DecoderTestDriver pieces(*weights, *backend, kTokens, cache);
    std::vector<std::vector<float>> again;
    const std::span<const int32_t> all(tokens);
    size_t done = 0;
    for (const size_t count : {33u, 1u, 6u, 1u, 4u}) {
      for (auto& row : pieces.Feed(all.subspan(done, count))) again.push_back(std::move(row));
      done += count;
    }
    EXPECT_EQ(again, logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, DecoderTest,
                         ::testing::Combine(::testing::ValuesIn(ops::SupportedCpuIsas()),
                                            ::testing::Values(DType::kF32, DType::kBF16,
                                                              DType::kF16),
                                            ::testing::ValuesIn(kVariants)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::string(DTypeName(std::get<1>(info.param))) + "_" +
                                  std::get<2>(info.param).name;
                         });

TEST(Decoder, RunsWithoutRowsThatWantLogits) {
  RandomSource source(TinySpec(DType::kF32), 1);
  const auto backend = CpuBackend("auto");
  const auto weights = LoadWeights(source, *backend, 8);
  ASSERT_TRUE(weights.ok());
  EXPECT_FALSE(Decoder::Create(*weights, *backend, 0, 1).ok());
  auto decoder = Decoder::Create(*weights, *backend, 8, 1);
  ASSERT_TRUE(decoder.ok());
  EXPECT_GT(Decoder::WorkspaceBytes((*weights)->spec, 8, 1), 0);
}

TEST(LoadWeights, TakesThePlannedBytes) {
  const auto backend = CpuBackend("auto");
  for (const Variant& variant : kVariants) {
    ModelSpec spec = TinySpec(DType::kBF16);
    variant.change(spec);
    RandomSource source(spec, 1);
    const auto weights = LoadWeights(source, *backend, 64);
    ASSERT_TRUE(weights.ok());
    EXPECT_EQ(WeightBytes(spec, *backend, 64), (*weights)->bytes);
  }
}

TEST(LoadWeights, KeepsTheCacheScalesOfEachGroup) {
  ModelSpec spec = TinySpec(DType::kBF16);
  spec.cache_scales = DType::kI8;
  spec.layers[1].attention.num_kv_heads = 3;
  RandomSource source(spec, 1);
  const auto backend = CpuBackend("auto");
  const auto weights = LoadWeights(source, *backend, 8);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const auto in_fp8 =
      MakeKvPool(spec, DType::kF8E4M3, 4, 16, *backend, (*weights)->kv_scales).value();
  ASSERT_EQ(in_fp8.pool.groups.size(), 2u);
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    const ops::KvPlace place = in_fp8.pool.layers[static_cast<size_t>(layer)];
    EXPECT_EQ(place.group, layer == 1 ? 1 : 0);
    EXPECT_EQ(place.index, layer == 2 ? 1 : 0);
    const ops::KvGroup& group = in_fp8.pool.groups[static_cast<size_t>(place.group)];
    const auto expect = [&](WeightRole role, const float* scales) {
      const Tensor stored = source.Get({role, layer, WeightPart::kCacheScale}).value();
      for (int64_t head = 0; head < stored.NumElements(); ++head) {
        EXPECT_EQ(scales[head], stored.As<float>()[head]) << "layer " << layer << " head " << head;
      }
    };
    expect(WeightRole::kKey, group.key_scales_of(place.index));
    expect(WeightRole::kValue, group.value_scales_of(place.index));
  }
  const auto in_int8 = MakeKvPool(spec, DType::kI8, 4, 16, *backend, (*weights)->kv_scales).value();
  EXPECT_EQ(in_int8.pool.groups.front().key_scales.data,
            in_fp8.pool.groups.front().key_scales.data);
  const auto in_16_bits =
      MakeKvPool(spec, DType::kBF16, 4, 16, *backend, (*weights)->kv_scales).value();
  EXPECT_TRUE(in_16_bits.pool.groups.front().key_scales.empty());
}

// Has kernels for no model.
class NoKernels final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  Status CheckSizes(int64_t vocab, int64_t head_dim) const override {
    return InvalidArgument(std::to_string(vocab) + ", " + std::to_string(head_dim));
  }
};

TEST(LoadWeights, NamesSizesTheBackendHasNoKernelsFor) {
  ModelSpec spec = TinySpec(DType::kBF16);
  spec.layers.back().attention.head_dim *= 2;
  const std::string sizes = std::to_string(spec.vocab_size) + ", " +
                            std::to_string(spec.layers.back().attention.head_dim);
  const auto cpu = CpuBackend("auto");
  NoKernels backend(*cpu);
  EXPECT_EQ(CheckLoadable(spec, backend).message(), sizes);
  RandomSource source(spec, 1);
  EXPECT_EQ(LoadWeights(source, backend, 8).status().message(), sizes);
  EXPECT_TRUE(CheckLoadable(spec, *cpu).ok());
}

TEST(LoadWeights, NamesTypesTheBackendCannotStore) {
  RandomSource source(TinySpec(DType::kBF16), 1);
  const auto backend = CpuBackend("auto");
  const QuantScheme fp4{QuantScheme::Element::kFp4E2M1, 1, 16};
  const auto weights = LoadWeights(source, *backend, 8, {}, {fp4});
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().code(), Code::kUnimplemented);
  EXPECT_EQ(CheckLoadable(source.spec(), *backend, {fp4}).message(), weights.status().message());
  EXPECT_TRUE(CheckLoadable(source.spec(), *backend).ok());
}

TEST(LoadWeights, AWeightIsKeptAsAskedUnlessItsElementsHaveThatTypeAlready) {
  using Inputs = QuantScheme::Inputs;
  using Element = QuantScheme::Element;
  const auto backend = CpuBackend("auto");
  ModelSpec spec = TinySpec(DType::kBF16);
  const QuantScheme asked = Fp8Scheme(Inputs::kDynamic);
  const QuantScheme int4{Element::kInt4, 1, 128};
  const QuantScheme int8{.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic};
  const auto kept = [&](WeightRole role, const AskedFormat& format) {
    return KeptFormat(spec, role, 0, *backend, format);
  };
  const WeightFormat plain{DType::kBF16};
  EXPECT_EQ(kept(WeightRole::kUp, {asked}), (WeightFormat{DType::kBF16, asked}));
  EXPECT_EQ(kept(WeightRole::kHead, {asked}), plain);
  EXPECT_EQ(kept(WeightRole::kHead, {.layers = asked, .head = int4}),
            (WeightFormat{DType::kBF16, int4}));
  EXPECT_EQ(kept(WeightRole::kHead, {.layers = asked, .head_as_layers = true}),
            (WeightFormat{DType::kBF16, asked}));
  EXPECT_EQ(kept(WeightRole::kHead, {.layers = int4, .head_as_layers = true}),
            (WeightFormat{DType::kBF16, int8}));
  EXPECT_EQ(kept(WeightRole::kHead, {.head_as_layers = true}), plain);
  spec.quantization = Fp8Scheme(Inputs::kStatic);
  EXPECT_EQ(kept(WeightRole::kUp, {asked}), (WeightFormat{DType::kBF16, spec.quantization}));
  EXPECT_EQ(kept(WeightRole::kHead, {.head_as_layers = true}), (WeightFormat{DType::kBF16, asked}));
  EXPECT_EQ(kept(WeightRole::kUp, {}), (WeightFormat{DType::kBF16, spec.quantization}));
  spec.quantization = {Element::kInt4, 1, 24};
  EXPECT_EQ(kept(WeightRole::kUp, {}), plain) << "a CPU widens groups of odd sizes";
}

TEST(LoadWeights, ReturnsTheSourcesErrors) {
  class Broken final : public WeightSource {
   public:
    const ModelSpec& spec() const override { return spec_; }
    Result<Tensor> Get(const WeightId&) override {
      return NotFound("model.safetensors: tensor \"lm_head.weight\" is missing");
    }
    ModelSpec spec_ = TinySpec(DType::kF32);
  };
  Broken source;
  const auto backend = CpuBackend("auto");
  const auto weights = LoadWeights(source, *backend, 8);
  ASSERT_FALSE(weights.ok());
  EXPECT_NE(weights.status().message().find("lm_head.weight"), std::string::npos);
  SetKvHeads(source.spec_, 4);
  EXPECT_NE(LoadWeights(source, *backend, 8).status().message().find("num_kv_heads"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem
