// Our forward pass compared with Hugging Face transformers: logits of every position of every
// prompt, on tiny random models of several shapes and config spellings
// (tests/golden/make_fixtures.py).
#include "checkpoint/testing/golden.h"

#include <gtest/gtest.h>

#include "checkpoint/hf_reader.h"
#include "model/testing/decoder_driver.h"

namespace tandem {
namespace {

class GoldenTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  // The logits of a prompt, computed in `dtype` (default: the model's own type).
  std::vector<std::vector<float>> Logits(const std::vector<int32_t>& tokens,
                                         std::optional<DType> dtype) const {
    const auto& [name, isa] = GetParam();
    auto reader = HfReader::Open(GoldenFolder() / name, dtype);
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false, .isa = isa});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    // transformers scales dynamically by the current prompt: serve exactly its length.
    const auto weights = LoadWeights(**reader, **backend, static_cast<int64_t>(tokens.size()));
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    DecoderTestDriver driver(*weights, **backend, static_cast<int32_t>(tokens.size()));
    return driver.Feed(tokens);
  }
};

TEST_P(GoldenTest, AgreesWithTransformers) {
  const std::filesystem::path folder = GoldenFolder() / std::get<0>(GetParam());
  const auto golden = SafetensorsFile::Open(folder / "golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  int compared = 0;
  for (const auto& [prompt, tokens] : GoldenPrompts(folder)) {
    const auto& tensors = (*golden)->tensors();
    const double wide =
        RelativeError(Logits(tokens, DType::kF32), tensors.at(prompt + ".logits_fp32"));
    EXPECT_LE(wide, 1e-4) << prompt << " in float32";
    ++compared;
    const auto native = tensors.find(prompt + ".logits_native");
    if (native == tensors.end()) continue;
    const double narrow = RelativeError(Logits(tokens, std::nullopt), native->second);
    EXPECT_LE(narrow, 2e-2) << prompt << " in the model's own type";
  }
  EXPECT_GE(compared, 2);
}

INSTANTIATE_TEST_SUITE_P(Tiny, GoldenTest,
                         ::testing::Combine(::testing::ValuesIn(GoldenModels()),
                                            ::testing::ValuesIn(ops::SupportedCpuIsas())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

TEST(Golden, CoversEveryShape) { EXPECT_GE(GoldenModels().size(), 6u); }

TEST(Golden, TheSpellingsOfTransformers4And5MeanTheSame) {
  for (const char* name : {"gqa_bf16_llama3_tied", "linear_bf16_sharded"}) {
    const auto five = HfReader::Open(GoldenFolder() / name);
    const auto four = HfReader::Open(GoldenFolder() / (std::string(name) + "_v4"));
    ASSERT_TRUE(five.ok()) << five.status().message();
    ASSERT_TRUE(four.ok()) << four.status().message();
    EXPECT_EQ((*five)->spec(), (*four)->spec());
  }
}

}  // namespace
}  // namespace tandem
