// Tiny checkpoints as TensorRT-LLM's tools write them (tests/golden/make_checkpoint_fixtures.py),
// one for each form of each quant_algo: logits of every position against those of the stored
// weights in fp32.
#include <gtest/gtest.h>

#include "checkpoint/testing/golden.h"
#include "checkpoint/testing/hf_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "model/testing/decoder_driver.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

fs::path Folder() { return SourceDir() / "tests/data/checkpoints"; }

class CheckpointGoldenTest : public FolderTest, public ::testing::WithParamInterface<std::string> {
 protected:
  static std::unique_ptr<ShardedSource> Open(const fs::path& folder) {
    auto source = OpenCheckpoint(folder);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? *std::move(source) : nullptr;
  }
};

TEST_P(CheckpointGoldenTest, AgreesWithTheStoredWeights) {
  const fs::path folder = Folder() / GetParam();
  const auto source = Open(folder);
  ASSERT_NE(source, nullptr);
  const auto tokens = GoldenPrompts(folder).at("short");
  const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
  const auto count = static_cast<int32_t>(tokens.size());
  const auto weights = LoadWeights(*source, *backend, count, {}, {.layers = QuantScheme{}});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const auto golden = SafetensorsFile::Open(folder / "golden.safetensors").value();
  EXPECT_LE(RelativeError(DecoderTestDriver(*weights, *backend, count).Feed(tokens),
                          golden->tensors().at("short.logits_fp32")),
            1e-4);
}

// In this program's own forms, over other ranks and stages than it came in.
TEST_P(CheckpointGoldenTest, WrittenAgainItHoldsTheSameWeights) {
  const auto source = Open(Folder() / GetParam());
  ASSERT_NE(source, nullptr);
  const ModelSpec& spec = source->spec();
  Sharding split{.tp_size = 2, .pp_size = spec.num_layers()};
  if (!CheckSharding(spec, split).ok()) split.tp_size = 1;  // groups of 64 of 64 columns
  for (const Sharding& sharding : {Sharding{}, split}) {
    ASSERT_TRUE(WriteCheckpoint(*source, sharding, folder_).ok());
    const auto again = Open(folder_);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(again->spec().exceptions, spec.exceptions);
    EXPECT_EQ(again->sharding().pp_size, sharding.pp_size);
    for (const WeightId& id : StoredWeights(spec)) {
      const auto a = source->Get(id);
      const auto b = again->Get(id);
      ASSERT_TRUE(a.ok()) << a.status().message();
      ASSERT_TRUE(b.ok()) << b.status().message();
      ASSERT_EQ(a->shape, b->shape);
      EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0)
          << FusedTensorOf(spec, id).name;
    }
    source->Release();
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CheckpointGoldenTest, ::testing::ValuesIn(GoldenModels(Folder())),
                         [](const auto& info) { return info.param; });

TEST(CheckpointGolden, CoversEveryForm) { EXPECT_GE(GoldenModels(Folder()).size(), 18u); }

TEST(CheckpointGolden, EachWeightIsDescribedAsItIsStored) {
  const auto describe = [](const char* name) {
    return DescribeScheme((*OpenCheckpoint(Folder() / name))->spec().quantization);
  };
  EXPECT_EQ(describe("w8a16_sm80"), "int8");
  EXPECT_EQ(describe("w8a16_not_rounded"), "not quantized");
  EXPECT_EQ(describe("gptq_sm90"), "int4 in groups of 64 with zero points");
  EXPECT_EQ(describe("w4a8_awq"), "int4 in groups of 32 with static input scales");
  EXPECT_EQ(describe("sq_tensor"), "int8 with static input scales");
  const auto awq = OpenCheckpoint(Folder() / "awq").value();
  EXPECT_TRUE(SchemeOf(awq->spec(), WeightRole::kDown, 0).input_factors);
  EXPECT_FALSE(SchemeOf(awq->spec(), WeightRole::kGate, 0).input_factors);
  const auto rows = OpenCheckpoint(Folder() / "fp8_rows").value();
  EXPECT_TRUE(SchemeOf(rows->spec(), WeightRole::kQuery, 0).is_plain());
  EXPECT_EQ(DescribeScheme(SchemeOf(rows->spec(), WeightRole::kUp, 0)), "fp8");
}

}  // namespace
}  // namespace tandem
