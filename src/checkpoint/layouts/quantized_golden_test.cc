// Tiny models that the libraries which define the formats have packed
// (tests/golden/make_quantized_fixtures.py): logits of every position against those of transformers
// with the weights that the library itself unpacks.
#include <gtest/gtest.h>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/golden.h"
#include "model/testing/decoder_driver.h"

namespace tandem {
namespace {

std::filesystem::path Folder() { return SourceDir() / "tests/data/quantized"; }

class QuantizedGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizedGoldenTest, AgreesWithTheLibrarysOwnWeights) {
  const std::filesystem::path folder = Folder() / GetParam();
  const auto reader = HfReader::Open(folder, DType::kF32);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_FALSE((*reader)->spec().quantization.is_plain());
  EXPECT_TRUE((*reader)->spec().exceptions.empty());
  const auto tokens = GoldenPrompts(folder).at("short");
  const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
  const auto count = static_cast<int32_t>(tokens.size());
  const auto weights = LoadWeights(**reader, *backend, count, {}, {.layers = QuantScheme{}});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const auto golden = SafetensorsFile::Open(folder / "golden.safetensors").value();
  EXPECT_LE(RelativeError(DecoderTestDriver(*weights, *backend, count).Feed(tokens),
                          golden->tensors().at("short.logits_fp32")),
            1e-4);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedGoldenTest, ::testing::ValuesIn(GoldenModels(Folder())),
                         [](const auto& info) { return info.param; });

TEST(QuantizedGolden, CoversEveryLibrary) { EXPECT_GE(GoldenModels(Folder()).size(), 14u); }

}  // namespace
}  // namespace tandem
