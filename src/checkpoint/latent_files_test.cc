// DeepSeek models from files beyond their logits: weights rounded while they are loaded, fp8 in
// blocks as DeepSeek stores them, caches in fp8, and the memory that a token takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/hf_folder.h"
#include "model/testing/decoder_driver.h"
#include "model/testing/relative_error.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class LatentFilesTest : public FolderTest {
 protected:
  std::vector<float> Logits(WeightSource& source, const AskedFormat& asked = {},
                            std::optional<DType> cache = {}) {
    const auto weights = LoadWeights(source, *backend_, 64, {}, asked);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    if (!weights.ok()) return {};
    EXPECT_EQ(WeightBytes(source.spec(), *backend_, 64, asked), (*weights)->bytes);
    DecoderTestDriver driver(*weights, *backend_, 64, cache);
    return driver.Feed(std::vector<int32_t>{1, 50, 7, 33, 22, 8}).back();
  }
  // Copies the fixture of V3 with its layers' products in fp8, in blocks of `block` rows and
  // columns, to folder_/fp8, and with their values to folder_/plain.
  void WriteBlocks(int64_t block);

  std::unique_ptr<ops::Backend> backend_ =
      ops::MakeCpuBackend({.num_threads = 2, .pin_threads = false}).value();
};

// Products of the layers but the routers.
bool IsBlocked(const std::string& name, const Tensor& tensor) {
  return tensor.shape.rank() == 2 && name.find("_proj") != std::string::npos &&
         name.find("eh_proj") == std::string::npos;
}

void LatentFilesTest::WriteBlocks(int64_t block) {
  const auto stored = SafetensorsFile::Open(FixtureOf("deepseek_v3") / "model.safetensors").value();
  std::vector<Buffer> memory;
  std::vector<NamedTensor> blocked, plain;
  const auto add = [&](std::vector<NamedTensor>& to, const std::string& name, DType dtype,
                       const Shape& shape) {
    memory.push_back(Buffer::OnHost(static_cast<size_t>(shape.NumElements()) * SizeOf(dtype)));
    to.push_back({name, memory.back().View(dtype, shape)});
    return to.back().tensor;
  };
  for (const auto& [name, tensor] : stored->tensors()) {
    const Tensor wide = add(plain, name, DType::kF32, tensor.shape);
    ConvertElements(tensor, wide);
    if (!IsBlocked(name, tensor)) {
      blocked.push_back(plain.back());
      continue;
    }
    const int64_t rows = tensor.dim(0), columns = tensor.dim(1);
    const Shape blocks{(rows + block - 1) / block, (columns + block - 1) / block};
    const Tensor elements = add(blocked, name, DType::kF8E4M3, tensor.shape);
    const Tensor scales = add(blocked, name + "_scale_inv", DType::kF32, blocks);
    for (int64_t i = 0; i < blocks.NumElements(); ++i) scales.As<float>()[i] = 0.0f;
    const auto scale_of = [&](int64_t row, int64_t column) -> float& {
      return scales.As<float>()[row / block * blocks[1] + column / block];
    };
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        float& scale = scale_of(row, column);
        scale = std::max(scale, std::abs(wide.As<float>()[row * columns + column]) / 448.0f);
      }
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        float& value = wide.As<float>()[row * columns + column];
        const float scale = scale_of(row, column);
        const Float8E4M3 element = ToFloat8E4M3(value / scale);
        elements.As<Float8E4M3>()[row * columns + column] = element;
        value = ToFloat(element) * scale;
      }
    }
  }
  std::string config = ReadTextFile(FixtureOf("deepseek_v3") / "config.json").value();
  const std::string sizes = std::to_string(block) + ", " + std::to_string(block);
  for (const auto& [name, tensors] : {std::pair("plain", &plain), {"fp8", &blocked}}) {
    fs::create_directories(folder_ / name);
    ASSERT_TRUE(WriteSafetensors(folder_ / name / "model.safetensors", *tensors, {}).ok());
    WriteText(folder_ / name / "config.json", config);
    config.insert(config.find('{') + 1,
                  R"("quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                      "activation_scheme": "dynamic", "weight_block_size": [)" +
                      sizes + "]},");
  }
}

TEST_F(LatentFilesTest, BlocksOfFp8AreWhatTheirValuesAre) {
  WriteBlocks(8);
  const auto blocked = HfReader::Open(folder_ / "fp8", DType::kF32);
  ASSERT_TRUE(blocked.ok()) << blocked.status().message();
  const ModelSpec& spec = (*blocked)->spec();
  for (const WeightRole role : {WeightRole::kLatentKey, WeightRole::kLatentValue,
                                WeightRole::kLatent, WeightRole::kQuery, WeightRole::kQueryDown}) {
    EXPECT_EQ(DescribeScheme(SchemeOf(spec, role, 1)), "fp8 in blocks of 8 x 8");
  }
  const auto plain = HfReader::Open(folder_ / "plain", DType::kF32).value();
  EXPECT_LT(RelativeError(Logits(**blocked), Logits(*plain)), 1e-5);
}

TEST_F(LatentFilesTest, BlocksThatCutAHeadsRowsAreRefusedByName) {
  WriteBlocks(12);
  const auto blocked = HfReader::Open(folder_ / "fp8", DType::kF32);
  ASSERT_FALSE(blocked.ok());
  EXPECT_THAT(blocked.status().message(), HasSubstr("kv_b_proj"));
  EXPECT_THAT(blocked.status().message(), HasSubstr("blocks of 12 rows"));
}

TEST_F(LatentFilesTest, ProductsByHeadsStayPlainWhenTheOthersAreRounded) {
  using Element = QuantScheme::Element;
  const QuantScheme int8{.element = Element::kInt8, .block_rows = 1};
  const QuantScheme int4{.element = Element::kInt4, .block_rows = 1, .block_columns = 128};
  for (const char* name : {"deepseek_v2_lite", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    const auto source = HfReader::Open(FixtureOf(name), DType::kBF16).value();
    const std::vector<float> expected = Logits(*source);
    for (const auto& [scheme, most] :
         {std::pair(Fp8Scheme(QuantScheme::Inputs::kDynamic), 0.2), {int8, 0.1}, {int4, 1.0}}) {
      SCOPED_TRACE(DescribeScheme(scheme));
      const AskedFormat asked{.layers = scheme};
      const auto kept = [&](WeightRole role) {
        return KeptFormat(source->spec(), role, 1, *backend_, asked);
      };
      EXPECT_EQ(kept(WeightRole::kLatent).scheme, scheme);
      EXPECT_EQ(kept(WeightRole::kLatentKey), (WeightFormat{DType::kBF16}));
      EXPECT_EQ(kept(WeightRole::kLatentValue), (WeightFormat{DType::kBF16}));
      const double error = RelativeError(Logits(*source, asked), expected);
      EXPECT_LT(error, most);
      EXPECT_GT(error, 0.0);
    }
  }
}

TEST_F(LatentFilesTest, ACacheInFp8IsCloseToOneOfTheModelsType) {
  for (const char* name : {"deepseek_v2_lite", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto source = HfReader::Open(FixtureOf(name), dtype).value();
      const double error = RelativeError(Logits(*source, {}, DType::kF8E4M3), Logits(*source));
      EXPECT_LT(error, 0.2);
      EXPECT_GT(error, 0.0);
    }
  }
}

TEST_F(LatentFilesTest, APoolHoldsALatentAndAKeyOfEachTokenAndNothingElse) {
  const ModelSpec spec = HfReader::Open(FixtureOf("deepseek_v3")).value()->spec();
  for (const DType dtype : {DType::kF32, DType::kF8E4M3}) {
    const auto pool = MakeKvPool(spec, dtype, 5, 16, *backend_).value();
    ASSERT_EQ(pool.memory.size(), 1u);
    // 32 of the latent and 8 that turn, in two layers.
    EXPECT_EQ(pool.memory[0].bytes(), size_t{5} * 16 * 40 * 2 * SizeOf(dtype));
    EXPECT_EQ(static_cast<int64_t>(pool.memory[0].bytes()), 5 * 16 * spec.KvBytesPerToken(dtype));
  }
}

}  // namespace
}  // namespace tandem
