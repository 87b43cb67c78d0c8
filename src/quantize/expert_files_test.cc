// Models with experts as files: checkpoints hold every expert, split over ranks too; quantizing
// rounds each of them and leaves the router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/convert.h"
#include "checkpoint/stored/stored_schemes.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/hf_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "model/testing/decoder_driver.h"
#include "model/testing/relative_error.h"
#include "quantize/quantize.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ExpertFilesTest : public FolderTest {
 protected:
  void ExpectTheSame(WeightSource& one, WeightSource& other) {
    ASSERT_EQ(one.spec().layers, other.spec().layers);
    for (const WeightId& id : StoredWeights(one.spec())) {
      const auto a = one.Get(id), b = other.Get(id);
      ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
      ASSERT_EQ(a->shape, b->shape);
      EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0)
          << StandardSource(one.spec(), id).name;
    }
  }
  Result<WriteReport> Round(const std::string& fixture, const std::string& qformat,
                            FolderKind kind = FolderKind::kCheckpoint) {
    return Quantize({.model_dir = FixtureOf(fixture),
                     .output_dir = folder_ / "out",
                     .dtype = "float32",
                     .recipe = RecipeOf(qformat, 64, "none").value(),
                     .folder = kind,
                     .num_threads = 2},
                    {}, *backend_);
  }
  std::vector<float> Logits(WeightSource& source) {
    const auto weights = LoadWeights(source, *backend_, 64);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    DecoderTestDriver driver(*weights, *backend_, 64);
    return driver.Feed(std::vector<int32_t>{1, 50, 7, 93, 22, 8}).back();
  }

  std::unique_ptr<ops::Backend> backend_ =
      ops::MakeCpuBackend({.num_threads = 2, .pin_threads = false}).value();
};

TEST_F(ExpertFilesTest, ACheckpointHoldsEveryExpertOnEveryNumberOfRanks) {
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "llama4_text",
                           "gpt_oss", "deepseek_v2_lite", "deepseek_v3"}) {
    for (const int64_t ranks : {1, 2}) {
      // The columns of its experts have one scale, which ranks cannot share.
      if (ranks > 1 && name == std::string_view("gpt_oss")) continue;
      // It has three heads.
      if (ranks > 1 && name == std::string_view("deepseek_v3")) continue;
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
      const auto report = Convert({.model_dir = FixtureOf(name),
                                   .output_dir = folder_ / "checkpoint",
                                   .dtype = "float32",
                                   .tp_size = ranks});
      ASSERT_TRUE(report.ok()) << report.status().message();
      const auto checkpoint = OpenCheckpoint(folder_ / "checkpoint");
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
      ExpectTheSame(*HfReader::Open(FixtureOf(name)).value(), **checkpoint);
    }
  }
}

TEST_F(ExpertFilesTest, EveryExpertIsRoundedAndTheRouterIsNot) {
  for (const char* name : {"mixtral", "qwen2_moe", "glm4_moe", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    const auto report = Round(name, "int8_wo");
    ASSERT_TRUE(report.ok()) << report.status().message();
    const auto rounded = OpenCheckpoint(folder_ / "out").value();
    const ModelSpec& spec = rounded->spec();
    const int64_t last = spec.num_layers() - 1;
    EXPECT_TRUE(SchemeOf(spec, WeightRole::kRouter, last).is_plain());
    for (const WeightRole role :
         {WeightRole::kExpertGate, WeightRole::kExpertUp, WeightRole::kExpertDown}) {
      EXPECT_EQ(DescribeScheme(SchemeOf(spec, role, last)), "int8");
    }
    const double error =
        RelativeError(Logits(*rounded), Logits(*HfReader::Open(FixtureOf(name)).value()));
    EXPECT_LT(error, 0.1);
    EXPECT_GT(error, 0.0);
  }
}

TEST_F(ExpertFilesTest, AFolderWithRoundedExpertsReadsAsTheCheckpointOfThem) {
  ASSERT_TRUE(Round("qwen3_moe", "int8_wo", FolderKind::kHuggingFace).ok());
  fs::rename(folder_ / "out", folder_ / "folder");
  const auto folder = HfReader::Open(folder_ / "folder");
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_THAT(ReadTextFile(folder_ / "folder/config.json").value(),
              HasSubstr("\"model.layers.1.mlp.gate\""))
      << "tools must leave the router as it is";
  ASSERT_TRUE(Round("qwen3_moe", "int8_wo").ok());
  ExpectTheSame(**folder, *OpenCheckpoint(folder_ / "out").value());
}

// The fixture's tensors under other names or with other values, beside its config.
class StackedExpertsTest : public ExpertFilesTest {
 protected:
  void Rewrite(const std::string& fixture, const std::string& config) {
    const auto file = SafetensorsFile::Open(FixtureOf(fixture) / "model.safetensors").value();
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : file->tensors()) Put(name, tensor, *file, tensors);
    WriteText(folder_ / "config.json", config);
    ASSERT_TRUE(WriteSafetensors(folder_ / "model.safetensors", tensors).ok());
  }
  virtual void Put(const std::string& name, const Tensor& tensor, const SafetensorsFile& file,
                   std::vector<NamedTensor>& out) = 0;
  std::vector<Buffer> memory_;
};

// Experts in MXFP4 as plain ones: [experts, columns, rows].
class PlainGptOssTest : public StackedExpertsTest {
 protected:
  void Put(const std::string& name, const Tensor& tensor, const SafetensorsFile& file,
           std::vector<NamedTensor>& out) override {
    if (name.ends_with("_scales")) return;
    const size_t suffix = name.find("_blocks");
    if (suffix == std::string::npos) return out.push_back({name, tensor});
    constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const std::string base = name.substr(0, suffix);
    const Tensor scales = file.tensors().at(base + "_scales");
    const int64_t experts = tensor.dim(0), rows = tensor.dim(1), cols = tensor.dim(2) * 32;
    memory_.push_back(Buffer::OnHost(static_cast<size_t>(experts * rows * cols) * sizeof(float)));
    const Tensor plain = memory_.back().View(DType::kF32, {experts, cols, rows});
    for (int64_t i = 0; i < experts * rows * cols; ++i) {
      const int64_t expert = i / (rows * cols), row = i / cols % rows, col = i % cols;
      const int code = tensor.As<uint8_t>()[i / 2] >> (i % 2 * 4) & 0xf;
      const float value = std::ldexp(kValues[code & 7], scales.As<uint8_t>()[i / 32] - 127);
      plain.As<float>()[(expert * cols + col) * rows + row] = code < 8 ? value : -value;
    }
    out.push_back({base, plain});
  }
};

TEST_F(PlainGptOssTest, HasTheLogitsOfItsExpertsInMxfp4) {
  auto config = nlohmann::json::parse(ReadTextFile(FixtureOf("gpt_oss") / "config.json").value());
  config.erase("quantization_config");
  Rewrite("gpt_oss", config.dump());
  const auto plain = HfReader::Open(folder_), packed = HfReader::Open(FixtureOf("gpt_oss"));
  ASSERT_TRUE(plain.ok() && packed.ok()) << plain.status().message();
  EXPECT_TRUE(SchemeOf((*plain)->spec(), WeightRole::kExpertUp, 1).is_plain());
  EXPECT_EQ(DescribeScheme(SchemeOf((*packed)->spec(), WeightRole::kExpertUp, 1)),
            "fp4 in groups of 32");
  const std::vector<float> expected = Logits(**packed), found = Logits(**plain);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << i;
}

// Without the prefix of a model that has others beside it.
class Llama4AloneTest : public StackedExpertsTest {
 protected:
  void Put(const std::string& name, const Tensor& tensor, const SafetensorsFile& /*file*/,
           std::vector<NamedTensor>& out) override {
    constexpr std::string_view kPrefix = "language_model.";
    if (name.starts_with(kPrefix)) out.push_back({name.substr(kPrefix.size()), tensor});
  }
};

TEST_F(Llama4AloneTest, IsTheSameModel) {
  const auto beside =
      nlohmann::json::parse(ReadTextFile(FixtureOf("llama4_text") / "config.json").value());
  auto config = beside.at("text_config");
  config["architectures"] = {"Llama4ForCausalLM"};
  Rewrite("llama4_text", config.dump());
  const auto alone = HfReader::Open(folder_);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  ExpectTheSame(**alone, *HfReader::Open(FixtureOf("llama4_text")).value());
}

TEST(StoredSchemes, ExpertsOfALayerAreStoredAlike) {
  ModelSpec spec = HfReader::Open(FixtureOf("mixtral")).value()->spec();
  std::vector<SchemeException> schemes;
  const QuantScheme int8 = {.element = QuantScheme::Element::kInt8, .block_rows = 1};
  for (const WeightId& id : Products(spec)) {
    const bool rounded = RowOf(id.role).quantizable && id.layer == 1;
    schemes.push_back({id.role, id.layer, rounded ? int8 : QuantScheme{}});
  }
  ModelSpec read = spec;
  ASSERT_TRUE(SetStoredSchemes(schemes, read).ok());
  EXPECT_EQ(SchemeOf(read, WeightRole::kExpertUp, 1), int8);
  EXPECT_TRUE(SchemeOf(read, WeightRole::kExpertUp, 0).is_plain());
  for (SchemeException& one : schemes) {
    if (one.role != WeightRole::kExpertUp || one.layer != 1) continue;
    one.scheme = {};
    break;
  }
  EXPECT_THAT(SetStoredSchemes(schemes, read).message(),
              HasSubstr("layer 1: \"mlp.experts.{}.up_proj\" is quantized in other ways"));
}

}  // namespace
}  // namespace tandem
