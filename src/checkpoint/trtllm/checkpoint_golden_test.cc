// Tiny checkpoints as TensorRT-LLM's tools write them (tests/golden/make_checkpoint_fixtures.py),
// one for each form of each quant_algo: logits of every position against those of the stored
// weights in fp32.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

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

TEST(CheckpointGolden, CoversEveryForm) { EXPECT_GE(GoldenModels(Folder()).size(), 20u); }

TEST(CheckpointGolden, EachWeightIsDescribedAsItIsStored) {
  const auto describe = [](const char* name) {
    return DescribeScheme((*OpenCheckpoint(Folder() / name))->spec().quantization);
  };
  EXPECT_EQ(describe("w8a16_sm80"), "int8");
  EXPECT_EQ(describe("w8a16_not_rounded"), "not quantized");
  EXPECT_EQ(describe("gptq_sm90"), "int4 in groups of 64 with zero points");
  EXPECT_EQ(describe("w4a8_awq"), "int4 in groups of 32 with static input scales");
  EXPECT_EQ(describe("sq_tensor"), "int8 with static input scales");
  const auto ranks = OpenCheckpoint(Folder() / "w4a16_tp2").value();
  EXPECT_EQ(DescribeScheme(SchemeOf(ranks->spec(), WeightRole::kGate, 0)), "int4");
  EXPECT_EQ(DescribeScheme(SchemeOf(ranks->spec(), WeightRole::kDown, 0)), "int4 in groups of 64");
  const auto awq = OpenCheckpoint(Folder() / "awq").value();
  EXPECT_TRUE(SchemeOf(awq->spec(), WeightRole::kDown, 0).input_factors);
  EXPECT_FALSE(SchemeOf(awq->spec(), WeightRole::kGate, 0).input_factors);
  const auto rows = OpenCheckpoint(Folder() / "fp8_rows").value();
  EXPECT_TRUE(SchemeOf(rows->spec(), WeightRole::kQuery, 0).is_plain());
  EXPECT_EQ(DescribeScheme(SchemeOf(rows->spec(), WeightRole::kUp, 0)), "fp8");
}

// Fills what begins at the tensor's data in a rank's file.
void Overwrite(const fs::path& path, const std::string& name, const std::vector<uint8_t>& bytes) {
  const auto file = SafetensorsFile::Open(path).value();
  const Tensor& tensor = file->tensors().at(name);
  ASSERT_LE(static_cast<int64_t>(bytes.size()), tensor.NumBytes());
  const auto size = fs::file_size(path);
  int64_t end = 0;  // of all data, which the file ends with
  const auto begin_of = [](const Tensor& t) { return static_cast<const std::byte*>(t.data); };
  for (const auto& [other, t] : file->tensors()) {
    end = std::max(end, begin_of(t) + t.NumBytes() - begin_of(tensor));
  }
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(size) - end);
  out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

constexpr WeightId kDownScale = {WeightRole::kDown, 0, WeightPart::kScale};

TEST_F(FolderTest, ScalesOfAnyRankAreChecked) {
  fs::copy(Folder() / "w8a16_tp2", folder_, fs::copy_options::recursive);
  Overwrite(folder_ / "rank1.safetensors", "transformer.layers.0.mlp.proj.per_channel_scale",
            {0x00, 0x7e});
  const auto source = OpenCheckpoint(folder_);
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto scales = (*source)->Get(kDownScale);
  ASSERT_FALSE(scales.ok());
  EXPECT_NE(scales.status().message().find("rank1.safetensors"), std::string::npos);
  EXPECT_NE(scales.status().message().find("nan"), std::string::npos);
}

TEST_F(FolderTest, WhatRanksRepeatIsTheSameOnAll) {
  fs::copy(Folder() / "w8a16_tp2", folder_, fs::copy_options::recursive);
  Overwrite(folder_ / "rank1.safetensors", "transformer.layers.0.input_layernorm.weight",
            {0x00, 0x3c, 0x00, 0x3d});
  const auto source = OpenCheckpoint(folder_);
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto norm = (*source)->Get({WeightRole::kInputNorm, 0});
  ASSERT_FALSE(norm.ok());
  EXPECT_NE(norm.status().message().find("input_layernorm.weight\" differs"), std::string::npos)
      << norm.status().message();
}

// Flat or of few levels: neither reading is likely.
TEST_F(FolderTest, KernelsOrderIsNotGuessed) {
  for (const std::vector<uint8_t>& levels :
       {std::vector<uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        std::vector<uint8_t>{0, 7, 9}, std::vector<uint8_t>{1, 8, 15}}) {
    fs::copy(Folder() / "w4a16_sm90", folder_,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    const fs::path path = folder_ / "rank0.safetensors";
    std::mt19937 random(3);
    std::map<std::string, size_t> sizes;
    const auto file = SafetensorsFile::Open(path).value();
    for (const auto& [name, tensor] : file->tensors()) {
      if (tensor.dtype == DType::kI8) sizes[name] = static_cast<size_t>(tensor.NumBytes());
    }
    for (const auto& [name, size] : sizes) {
      std::vector<uint8_t> bytes(size);
      for (uint8_t& byte : bytes) {
        byte = static_cast<uint8_t>(levels[random() % levels.size()] |
                                    levels[random() % levels.size()] << 4);
      }
      Overwrite(path, name, bytes);
    }
    const auto source = OpenCheckpoint(folder_);
    ASSERT_FALSE(source.ok()) << levels.size();
    EXPECT_NE(source.status().message().find("sm_90"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem
