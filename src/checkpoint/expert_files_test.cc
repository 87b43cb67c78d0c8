// Models with experts as files: checkpoints hold every expert, split over ranks too; quantizing
// rounds each of them and leaves the router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "checkpoint/convert.h"
#include "checkpoint/quantize/quantize.h"
#include "checkpoint/stored/stored_schemes.h"
#include "checkpoint/testing/golden.h"
#include "checkpoint/testing/hf_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "model/testing/decoder_driver.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path FixtureOf(const std::string& name) { return SourceDir() / "tests/data/families" / name; }

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
  Result<QuantizeReport> Round(const std::string& fixture, const std::string& qformat,
                               bool export_hf) {
    return Quantize({.model_dir = FixtureOf(fixture),
                     .output_dir = folder_ / "out",
                     .dtype = "float32",
                     .recipe = RecipeOf(qformat, 64, "none").value(),
                     .export_hf = export_hf,
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
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe"}) {
    for (const int64_t ranks : {1, 2}) {
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
  for (const char* name : {"mixtral", "qwen2_moe", "glm4_moe"}) {
    SCOPED_TRACE(name);
    const auto report = Round(name, "int8_wo", false);
    ASSERT_TRUE(report.ok()) << report.status().message();
    const auto rounded = OpenCheckpoint(folder_ / "out").value();
    const ModelSpec& spec = rounded->spec();
    const int64_t last = spec.num_layers() - 1;
    EXPECT_TRUE(SchemeOf(spec, WeightRole::kRouter, last).is_plain());
    for (const WeightRole role :
         {WeightRole::kExpertGate, WeightRole::kExpertUp, WeightRole::kExpertDown}) {
      EXPECT_EQ(DescribeScheme(SchemeOf(spec, role, last)), "int8");
    }
    const std::vector<float> expected = Logits(*HfReader::Open(FixtureOf(name)).value());
    const std::vector<float> found = Logits(*rounded);
    double difference = 0.0, length = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(found[i] - expected[i], 2);
      length += std::pow(expected[i], 2);
    }
    EXPECT_LT(std::sqrt(difference / length), 0.1);
    EXPECT_GT(difference, 0.0);
  }
}

TEST_F(ExpertFilesTest, AFolderWithRoundedExpertsReadsAsTheCheckpointOfThem) {
  ASSERT_TRUE(Round("qwen3_moe", "int8_wo", true).ok());
  fs::rename(folder_ / "out", folder_ / "folder");
  const auto folder = HfReader::Open(folder_ / "folder");
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_THAT(ReadTextFile(folder_ / "folder/config.json").value(),
              HasSubstr("\"model.layers.1.mlp.gate\""))
      << "tools must leave the router as it is";
  ASSERT_TRUE(Round("qwen3_moe", "int8_wo", false).ok());
  ExpectTheSame(**folder, *OpenCheckpoint(folder_ / "out").value());
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
