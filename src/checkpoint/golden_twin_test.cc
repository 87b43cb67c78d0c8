// The tiny models on every backend in 16 bits, and on a GPU in fp8: compared with transformers'
// results and, more strictly, with a reference in double precision that rounds where a backend
// stores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/golden.h"
#include "model/testing/decoder_driver.h"
#include "model/testing/reference_decoder.h"
#include "ops/testing/op_test.h"

namespace tandem {
namespace {

// Tolerance for transformers' logits in 16 bits.
constexpr double kGoldenBound = 2e-2;
// Tolerance for the reference's: sums in another order sometimes round differently.
constexpr double kTwinBound = 1e-2;
// e4m3 has three bits of mantissa: a rounding moves a value by up to 2^-4, and the logits of these
// models, according to the reference, by up to 0.094 (weights), 0.055 (cache), 0.106 (both).
// Rounding a long prompt's activations too does not increase that.
constexpr double kFp8WeightsBound = 0.13;
constexpr double kFp8CacheBound = 0.07;
// The products' sums are as precise as the reference's; but a key that rounds differently is off by
// a step of fp8.
constexpr double kFp8TwinBound = 2e-2;

struct TwinCase {
  ops::BackendCase backend;
  std::string model;
};
void PrintTo(const TwinCase& twin, std::ostream* out) {
  *out << twin.backend.name << ' ' << twin.model;
}

DType TypeOf(const std::string& model) {
  return HfReader::Open(GoldenFolder() / model).value()->spec().dtype;
}

// Every backend with the models of its case's type, and with those of 32 bits converted to it.
std::vector<TwinCase> Pair(const std::vector<ops::BackendCase>& backends) {
  std::vector<TwinCase> cases;
  for (const ops::BackendCase& backend : backends) {
    if (backend.dtype == DType::kF32) continue;
    for (const std::string& model : GoldenModels()) {
      const DType own = TypeOf(model);
      if (own == backend.dtype || own == DType::kF32) cases.push_back({backend, model});
    }
  }
  return cases;
}

std::vector<TwinCase> Only32Bits(std::vector<TwinCase> cases) {
  std::erase_if(cases, [](const TwinCase& one) { return TypeOf(one.model) != DType::kF32; });
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<TwinCase>& info) {
  return info.param.backend.name + "_" + info.param.model;
}

class GoldenTwinTest : public ::testing::TestWithParam<TwinCase> {
 protected:
  using Logits = std::vector<std::vector<float>>;

  std::unique_ptr<HfReader> Reader() const {
    return HfReader::Open(folder_, GetParam().backend.dtype).value();
  }
  // `kept`, `cache`: storage type of the layers' weights, and of the cache.
  Logits Ours(const std::vector<int32_t>& tokens, std::optional<QuantScheme> kept = {},
              std::optional<DType> cache = {}) {
    const auto weights =
        LoadWeights(*Reader(), *backend_, static_cast<int64_t>(tokens.size()), {}, {kept});
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    return DecoderTestDriver(*weights, *backend_, static_cast<int32_t>(tokens.size()), cache)
        .Feed(tokens);
  }
  Matrix Twin(const std::vector<int32_t>& tokens, bool fp8_linears, bool fp8_cache) const {
    return ReferenceDecoder(*Reader(),
                            {.activations = GetParam().backend.dtype,
                             .fp8_linears = fp8_linears,
                             .cache = fp8_cache ? std::optional(DType::kF8E4M3) : std::nullopt,
                             .late_norms_multiple = TakesNormsLate(tokens.size()) ? 64 : 0})
        .Logits(tokens, static_cast<int64_t>(tokens.size()));
  }
  // Ops::LinearAdd, for products of whole units of 64 columns.
  static bool TakesNormsLate(size_t rows) {
    const ops::BackendCase& backend = GetParam().backend;
    return backend.name.starts_with("cuda") && backend.dtype == DType::kBF16 &&
           !backend.batch_invariant && rows <= ops::kMaxAddedRows;
  }
  // transformers' results: in the model's own type if it has 16 bits, or in 32.
  const Tensor& Golden(const std::string& prompt, bool native) const {
    const auto& tensors = golden_->tensors();
    const auto found = tensors.find(prompt + ".logits_native");
    return native && found != tensors.end() ? found->second : tensors.at(prompt + ".logits_fp32");
  }
  static void Say(const std::string& what, double golden, double twin) {
    const auto& [backend, model] = GetParam();
    std::cout << backend.name << ' ' << model << ' ' << what << ": " << golden
              << " of transformers, " << twin << " of the twin\n";
  }

  const std::filesystem::path folder_ = GoldenFolder() / GetParam().model;
  const std::shared_ptr<const SafetensorsFile> golden_ =
      SafetensorsFile::Open(folder_ / "golden.safetensors").value();
  const std::unique_ptr<ops::Backend> backend_ = GetParam().backend.make();
};

TEST_P(GoldenTwinTest, In16BitsAgreesWithBoth) {
  for (const auto& [prompt, tokens] : GoldenPrompts(folder_)) {
    const Logits ours = Ours(tokens);
    const double golden = RelativeError(ours, Golden(prompt, true));
    const double twin = RelativeError(ours, Twin(tokens, false, false));
    Say(prompt, golden, twin);
    EXPECT_LE(golden, kGoldenBound) << prompt;
    EXPECT_LE(twin, kTwinBound) << prompt;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenTwinTest,
                         ::testing::ValuesIn(Pair(ops::AllBackendCases())), CaseName);

class GoldenFp8Test : public GoldenTwinTest {
 protected:
  // Products of more rows may round their activations to fp8 too, which the reference does not.
  static bool ActivationsStayWide(size_t rows) {
    const ops::BackendCase& backend = GetParam().backend;
    return rows <= 16 || backend.batch_invariant || backend.name.starts_with("cuda_as_sm80");
  }
  void ExpectNear(bool fp8_linears, bool fp8_cache, const std::string& what) {
    const std::optional<QuantScheme> scheme = Fp8Scheme(QuantScheme::Inputs::kDynamic);
    const std::optional<DType> fp8 = DType::kF8E4M3;
    const double bound = fp8_linears ? kFp8WeightsBound : kFp8CacheBound;
    for (const auto& [prompt, tokens] : GoldenPrompts(folder_)) {
      const Logits ours =
          Ours(tokens, fp8_linears ? scheme : std::nullopt, fp8_cache ? fp8 : std::nullopt);
      const double golden = RelativeError(ours, Golden(prompt, false));
      const double twin = RelativeError(ours, Twin(tokens, fp8_linears, fp8_cache));
      Say(prompt + what, golden, twin);
      EXPECT_LE(golden, bound) << prompt << what;
      if (!fp8_linears || ActivationsStayWide(tokens.size())) {
        EXPECT_LE(twin, kFp8TwinBound) << prompt << what;
      }
    }
  }
};

TEST_P(GoldenFp8Test, RoundedWeightsAgreeWithBoth) { ExpectNear(true, false, ", fp8 weights"); }

TEST_P(GoldenFp8Test, RoundedWeightsAndCacheAgreeWithBoth) {
  ExpectNear(true, true, ", fp8 weights and cache");
}

// Only a GPU supports both.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenFp8Test);
INSTANTIATE_TEST_SUITE_P(Backends, GoldenFp8Test,
                         ::testing::ValuesIn(Pair(ops::OnCuda(ops::AllBackendCases()))), CaseName);

class GoldenFp8CacheTest : public GoldenFp8Test {};

TEST_P(GoldenFp8CacheTest, ARoundedCacheAgreesWithBoth) { ExpectNear(false, true, ", fp8 cache"); }

INSTANTIATE_TEST_SUITE_P(Backends, GoldenFp8CacheTest,
                         ::testing::ValuesIn(Pair(ops::AllBackendCases())), CaseName);

class GoldenFp32Test : public GoldenTwinTest {};

// A GPU computes in 16 bits: it takes a model in 32 bits only after conversion.
TEST_P(GoldenFp32Test, IsRefusedAsItIs) {
  const QuantScheme fp8 = Fp8Scheme(QuantScheme::Inputs::kDynamic);
  for (const std::optional<QuantScheme>& kept : {std::optional<QuantScheme>(), {fp8}}) {
    const auto reader = HfReader::Open(folder_).value();
    const auto weights = LoadWeights(*reader, *backend_, 8, {}, {kept});
    ASSERT_FALSE(weights.ok());
    EXPECT_EQ(weights.status().code(), Code::kUnimplemented);
    EXPECT_THAT(weights.status().message(), ::testing::HasSubstr("float32"));
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenFp32Test);
INSTANTIATE_TEST_SUITE_P(Backends, GoldenFp32Test,
                         ::testing::ValuesIn(Only32Bits(Pair(ops::OnCuda(ops::AllBackendCases())))),
                         CaseName);

}  // namespace
}  // namespace tandem
