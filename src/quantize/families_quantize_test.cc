// Every family, quantized in every format that calibrates: read back it is near the plain model, a
// folder gives what a checkpoint gives, and its names are those of the family. The models are those
// of tests/data/families, calibrated with their own prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/hf_writer.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/hf_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "model/families/families.h"
#include "model/prompt_rules.h"
#include "model/testing/decoder_driver.h"
#include "model/testing/relative_error.h"
#include "ops/testing/failing_backend.h"
#include "quantize/layer_inputs.h"
#include "quantize/quantize.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int64_t kGroup = 64;

class FamiliesQuantizeTest : public FolderTest, public ::testing::WithParamInterface<std::string> {
 protected:
  FamiliesQuantizeTest() : model_(FixturesFolder() / GetParam()) {
    plain_ = HfReader::Open(model_, DType::kF32).value();
    const auto cases = SafetensorsFile::Open(model_ / "cases.safetensors").value();
    for (const FamilyCase& one : CasesOf(*cases)) {
      std::vector<int32_t>& sample = samples_.emplace_back(one.tokens);
      const auto most = static_cast<size_t>(plain_->spec().max_positions);
      sample.resize(std::min(sample.size(), most));
      longest_ = std::max(longest_, std::ssize(sample));
    }
  }
  // Only gpt-oss.
  bool IsQuantized() const {
    return !plain_->spec().quantization.is_plain() || !plain_->spec().exceptions.empty();
  }
  bool IsCalibrated() const { return !IsQuantized() && CheckCalibrated(plain_->spec()).ok(); }
  bool HasHfFolder() const { return CheckHfFolder(plain_->spec(), {.path = model_}).ok(); }

  QuantizeOptions Options(const std::string& qformat, const std::string& name) const {
    return {.model_dir = model_,
            .output_dir = folder_ / name,
            .dtype = "float32",
            .recipe = RecipeOf(qformat, kGroup, "fp8").value(),
            .num_threads = 1};
  }
  bool HasExperts() const {
    const std::vector<LayerSpec>& layers = plain_->spec().layers;
    return std::ranges::any_of(layers, [](const LayerSpec& l) { return l.moe.num_experts > 0; });
  }
  // The checkpoint that the options make; null with a failure of the test.
  std::unique_ptr<WeightSource> Made(const QuantizeOptions& options) {
    const auto report = Quantize(options, samples_, *backend_);
    EXPECT_TRUE(report.ok()) << report.status().message();
    if (!report.ok()) return nullptr;
    auto checkpoint = OpenCheckpoint(options.output_dir);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
  }
  std::vector<float> Logits(WeightSource& source) {
    const auto weights = LoadWeights(source, *backend_, longest_);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    std::vector<float> all;
    if (!weights.ok()) return all;
    for (const std::vector<int32_t>& sample : samples_) {
      DecoderTestDriver driver(*weights, *backend_, static_cast<int32_t>(sample.size()));
      const auto layout = LayOutPrompt(PromptRulesOf(source.spec(), longest_), sample);
      EXPECT_TRUE(layout.ok()) << layout.status().message();
      if (layout.ok()) driver.SetLayout(*layout);
      for (const std::vector<float>& row : driver.Feed(sample)) {
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    return all;
  }
  // From the plain model's logits.
  double Error(WeightSource& quantized) {
    return RelativeError(Logits(quantized), Logits(*plain_));
  }

  const fs::path model_;
  std::unique_ptr<HfReader> plain_;
  std::vector<std::vector<int32_t>> samples_;
  int64_t longest_ = 0;
  std::unique_ptr<ops::Backend> backend_ =
      ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false, .isa = "avx2"}).value();
};

// Bounds by format, 1.2 times the worst measured. Tiny random models are harder than trained ones:
// a rounded router chooses other experts, of which each row has two.
struct Format {
  const char* qformat;
  double error;
  double with_experts;
};
constexpr Format kFormats[] = {{"fp8", 0.2, 0.22},
                               {"int8_sq", 0.04, 0.11},
                               {"int4_awq", 0.57, 0.58},
                               {"w4a8_awq", 0.57, 0.58}};

TEST_P(FamiliesQuantizeTest, EveryFormatIsNearThePlainModel) {
  if (!IsCalibrated()) {
    const auto report = Quantize(Options("fp8", "fp8"), samples_, *backend_);
    ASSERT_FALSE(report.ok());
    EXPECT_THAT(report.status().message(),
                HasSubstr(IsQuantized() ? "is quantized already" : "--use_fp8_rowwise"));
    return;
  }
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.qformat);
    const QuantizeOptions options = Options(format.qformat, format.qformat);
    const auto checkpoint = Made(options);
    ASSERT_NE(checkpoint, nullptr);
    const ModelSpec& spec = checkpoint->spec();
    EXPECT_EQ(spec.quantization, options.recipe.scheme);
    EXPECT_LE(Error(*checkpoint), HasExperts() ? format.with_experts : format.error);
    EXPECT_EQ(spec.cache_scales, DType::kF8E4M3);
    for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
      for (const WeightRole role : {WeightRole::kKey, WeightRole::kValue}) {
        const Tensor scales = checkpoint->Get({role, layer, WeightPart::kCacheScale}).value();
        for (int64_t head = 0; head < scales.dim(0); ++head) {
          EXPECT_GT(scales.As<float>()[head], 0.0f);
          EXPECT_NE(scales.As<float>()[head], 1.0f) << "of what was never seen";
        }
      }
    }
  }
}

TEST_P(FamiliesQuantizeTest, ScalesAndClippingAreBetterThanRoundingAlone) {
  if (!IsCalibrated()) return;
  QuantizeOptions options = Options("int4_awq", "awq");
  const auto awq = Made(options);
  options.recipe.input_scales = QuantizeRecipe::InputScales::kNone;
  options.output_dir = folder_ / "rounded";
  const auto rounded = Made(options);
  ASSERT_TRUE(awq != nullptr && rounded != nullptr);
  EXPECT_LT(Error(*awq), Error(*rounded));
}

// Wide moves and fine rounding: what the scales take out of inputs, what is before them and what
// reads them beside the quantized products must take over.
TEST_P(FamiliesQuantizeTest, ScalesThatMoveALotChangeNothingElse) {
  if (!IsCalibrated()) return;
  QuantizeOptions options = Options("int8_wo", "out");
  options.recipe.input_scales = QuantizeRecipe::InputScales::kSmoothQuant;
  options.recipe.smooth_alpha = 0.7;
  const auto moved = Made(options);
  ASSERT_NE(moved, nullptr);
  EXPECT_LE(Error(*moved), HasExperts() ? 0.08 : 0.04);
}

TEST_P(FamiliesQuantizeTest, AnExportedFolderGivesTheLogitsOfTheCheckpoint) {
  if (!IsCalibrated()) return;
  for (const char* qformat : {"fp8", "int8_sq", "int8_wo", "int4_awq"}) {
    SCOPED_TRACE(qformat);
    QuantizeOptions options = Options(qformat, std::string(qformat) + "_hf");
    options.folder = FolderKind::kHuggingFace;
    // Groups that fit the rows of every fixture, as groups of 64 fit those of real models.
    if (int64_t& group = options.recipe.scheme.block_columns; group > 0) group = 4;
    const auto report = Quantize(options, samples_, *backend_);
    if (!HasHfFolder()) {
      ASSERT_FALSE(report.ok());
      EXPECT_THAT(report.status().message(), HasSubstr("--export_format tensorrt_llm"));
      continue;
    }
    ASSERT_TRUE(report.ok()) << report.status().message();
    const auto folder = HfReader::Open(options.output_dir, DType::kF32);
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    EXPECT_EQ((*folder)->spec().quantization, options.recipe.scheme);
    EXPECT_EQ((*folder)->spec().cache_scales, DType::kF8E4M3);
    options.folder = FolderKind::kCheckpoint;
    options.output_dir = folder_ / qformat;
    const auto checkpoint = Made(options);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(Logits(**folder), Logits(*checkpoint));
  }
}

// Nothing is quantized: the tensors are those of the model's own folder.
TEST_P(FamiliesQuantizeTest, AnExportedFolderHasTheNamesAndRowsOfTheFamily) {
  if (!IsCalibrated() || !HasHfFolder()) return;
  QuantizeOptions options = Options("full_prec", "out");
  options.recipe.cache_scales.reset();
  options.dtype = "bfloat16";
  options.folder = FolderKind::kHuggingFace;
  const auto report = Quantize(options, samples_, *backend_);
  ASSERT_TRUE(report.ok()) << report.status().message();
  const auto own = SafetensorsFile::Open(model_ / "model.safetensors").value();
  const auto written = SafetensorsFile::Open(options.output_dir / "model.safetensors").value();
  for (const auto& [name, tensor] : written->tensors()) {
    auto found = own->tensors().find(name);
    const std::string_view prefix = FamilyOf(plain_->spec())->optional_prefix;
    if (found == own->tensors().end() && name.starts_with(prefix)) {
      found = own->tensors().find(name.substr(prefix.size()));
    }
    ASSERT_NE(found, own->tensors().end()) << name;
    ASSERT_EQ(tensor.shape, found->second.shape) << name;
    // Rows of positions that nothing reads are not kept.
    const int64_t first =
        name.ends_with("embed_positions.weight") ? tensor.dim(0) - plain_->spec().position_rows : 0;
    const Tensor a = tensor.RowRange(first, tensor.dim(0) - first);
    const Tensor b = found->second.RowRange(first, tensor.dim(0) - first);
    if (a.dtype == b.dtype) {
      EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.NumBytes())), 0) << name;
    }
  }
  EXPECT_EQ(Logits(*HfReader::Open(options.output_dir, DType::kF32).value()), Logits(*plain_));
}

class KilledRunTest : public FamiliesQuantizeTest {};

// Wherever it ended, the run that follows goes on and gives the same bytes as one run.
TEST_P(KilledRunTest, GoesOnAndGivesTheSameBytes) {
  const auto file = [](const fs::path& folder) {
    return *ReadTextFile(folder / "rank0.safetensors");
  };
  ASSERT_NE(Made(Options("int4_awq", "whole")), nullptr);
  int resumed = 0;
  for (int waits = 5; waits < 500 && resumed < 2; waits += 50) {
    const QuantizeOptions options = Options("int4_awq", "out");
    fs::remove_all(options.output_dir);
    ops::FailingBackend failing(*backend_);
    failing.LoseAfter(waits);
    if (Quantize(options, samples_, failing).ok()) break;
    const auto report = Quantize(
        options, samples_, *backend_,
        {.estimate = [&](const CalibrationEstimate& e) { resumed += e.layers_done > 0 ? 1 : 0; }});
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(file(options.output_dir), file(folder_ / "whole")) << waits;
  }
  EXPECT_GE(resumed, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, FamiliesQuantizeTest, ::testing::ValuesIn(FamilyFixtures()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(WithExperts, KilledRunTest, ::testing::Values("mixtral"));

}  // namespace
}  // namespace tandem
