// What `tandem quantize --export_format hf` writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/trtllm/checkpoint.h"
#include "quantize/testing/quantize_fixture.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ExportTest : public QuantizeTest {};

TEST_F(ExportTest, AnExportedFolderGivesTheLogitsOfTheCheckpoint) {
  for (const char* qformat :
       {"full_prec", "fp8", "int8_wo", "int4_wo", "int8_sq", "int4_awq", "w4a8_awq"}) {
    QuantizeOptions options = Options(qformat, std::string(qformat) + "_hf");
    options.folder = FolderKind::kHuggingFace;
    ASSERT_TRUE(Run(options).ok());
    ASSERT_TRUE(Run(Options(qformat, qformat)).ok());
    const auto folder = HfReader::Open(options.output_dir);
    ASSERT_TRUE(folder.ok()) << qformat << ": " << folder.status().message();
    EXPECT_EQ((*folder)->spec().quantization, options.recipe.scheme) << qformat;
    const auto checkpoint = OpenCheckpoint(folder_ / qformat);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(Logits(**folder), Logits(**checkpoint)) << qformat;
  }
}

TEST_F(ExportTest, OptionsBesideTheConfigHoldInAnExportedFolder) {
  QuantizeOptions options = Options("int8_wo", "hf8");
  options.config = {
      .rotary_base = 250.0, .rotary_scaling_type = "linear", .rotary_scaling_factor = 4.0};
  QuantizeOptions checkpoint = options;
  checkpoint.output_dir = folder_ / "checkpoint";
  options.folder = FolderKind::kHuggingFace;
  ASSERT_TRUE(Run(checkpoint).ok());
  ASSERT_TRUE(Run(options).ok());
  const auto exported = HfReader::Open(folder_ / "hf8").value();
  EXPECT_EQ(exported->spec().layer(0).attention.rope.theta, 250.0);
  EXPECT_EQ(Logits(*exported), Logits(*OpenCheckpoint(folder_ / "checkpoint").value()));
  // Before any work.
  options.output_dir = folder_ / "refused";
  options.config = {.rotary_dim = 4};
  const auto refused = Run(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("--rotary_dim: "));
  EXPECT_THAT(refused.status().message(), HasSubstr("--export_format tensorrt_llm"));
  EXPECT_FALSE(fs::exists(options.output_dir));
}

// compressed-tensors, transformers and vLLM have no group that ends before it is full.
TEST_F(ExportTest, GroupsThatItsReadersCannotUseAreRefused) {
  QuantizeOptions options = Options("int4_awq");
  options.recipe = RecipeOf("int4_awq", 128, "none").value();
  options.folder = FolderKind::kHuggingFace;
  const auto refused = Run(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              HasSubstr("the 64 columns of model.layers.0.self_attn.q_proj.weight are no multiple "
                        "of the groups of 128"));
  EXPECT_FALSE(fs::exists(options.output_dir));
}

TEST_F(ExportTest, ATokenizerOfAnotherFolderGoesAlong) {
  const fs::path other = folder_ / "tokenizer";
  fs::create_directories(other);
  WriteText(other / "tokenizer.json", "another");
  WriteText(other / "generation_config.json", "another");
  WriteText(folder_ / "hf" / "tokenizer.json", "its own");
  WriteText(folder_ / "hf" / "tokenizer.model", "its own");
  WriteText(folder_ / "hf" / "generation_config.json", "its own");
  QuantizeOptions options = Options("int8_wo");
  options.tokenizer_dir = other;
  for (const FolderKind kind : {FolderKind::kHuggingFace, FolderKind::kCheckpoint}) {
    options.folder = kind;
    ASSERT_TRUE(Run(options).ok());
    EXPECT_EQ(*ReadTextFile(folder_ / "out" / "tokenizer.json"), "another");
    EXPECT_FALSE(fs::exists(folder_ / "out" / "tokenizer.model"));
    EXPECT_EQ(*ReadTextFile(folder_ / "out" / "generation_config.json"), "its own");
    fs::remove_all(folder_ / "out");
  }
}

// One for all heads of a layer, under the names that compressed-tensors gives them.
TEST_F(ExportTest, AnExportedFolderHoldsTheScalesOfKeysAndValues) {
  QuantizeOptions options = Options("fp8", "hf8");
  options.recipe.cache_scales = DType::kF8E4M3;
  ASSERT_TRUE(Run({.model_dir = options.model_dir,
                   .output_dir = folder_ / "checkpoint",
                   .recipe = options.recipe,
                   .num_threads = 2})
                  .ok());
  options.folder = FolderKind::kHuggingFace;
  ASSERT_TRUE(Run(options).ok());
  const auto file = SafetensorsFile::Open(folder_ / "hf8" / "model.safetensors").value();
  EXPECT_EQ(file->tensors().count("model.layers.1.self_attn.k_scale"), 1u);
  EXPECT_EQ(file->tensors().count("model.layers.1.self_attn.v_scale"), 1u);
  const auto folder = HfReader::Open(folder_ / "hf8").value();
  const auto checkpoint = OpenCheckpoint(folder_ / "checkpoint").value();
  for (const WeightRole role : {WeightRole::kKey, WeightRole::kValue}) {
    const WeightId id{role, 1, WeightPart::kCacheScale};
    const Tensor exported = folder->Get(id).value();
    const Tensor by_head = checkpoint->Get(id).value();
    float largest = 0.0f;
    for (int head = 0; head < 4; ++head) largest = std::max(largest, by_head.As<float>()[head]);
    EXPECT_EQ(exported.As<float>()[0], largest);
  }
}

// transformers writes the type as "dtype" or, before release 5, as "torch_dtype".
TEST_F(ExportTest, AnExportedFolderNamesItsTypeUnderBothNames) {
  const HfFolder both = {.extra_config = ", \"dtype\": \"bfloat16\""};
  both.Write(folder_ / "hf");
  QuantizeOptions options = Options("int8_wo");
  options.folder = FolderKind::kHuggingFace;
  options.dtype = "float32";
  ASSERT_TRUE(Run(options).ok());
  const std::string config = *ReadTextFile(folder_ / "out" / "config.json");
  EXPECT_THAT(config, HasSubstr("\"dtype\": \"float32\""));
  EXPECT_THAT(config, HasSubstr("\"torch_dtype\": \"float32\""));
  EXPECT_EQ(HfReader::Open(folder_ / "out").value()->spec().dtype, DType::kF32);
}

// Without it transformers cannot load the models of Baichuan, ChatGLM, InternLM and Qwen 1.
TEST_F(ExportTest, AnExportedFolderHoldsTheCodeOfTheModel) {
  const HfFolder with_code = {.extra_config =
                                  R"(, "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"})"};
  with_code.Write(folder_ / "hf");
  WriteText(folder_ / "hf" / "modeling_own.py", "class Own: pass\n");
  QuantizeOptions options = Options("int8_wo");
  options.folder = FolderKind::kHuggingFace;
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ(*ReadTextFile(folder_ / "out" / "modeling_own.py"), "class Own: pass\n");
}

TEST_F(ExportTest, AnExportedFolderIsReplacedByTheNextExport) {
  QuantizeOptions options = Options("int8_wo");
  options.folder = FolderKind::kHuggingFace;
  ASSERT_TRUE(Run(options).ok());
  const auto first = FilesOf(folder_ / "out");
  WriteText(folder_ / "out" / "notes.txt", "mine");
  // As a larger model leaves it.
  fs::copy_file(folder_ / "out" / "model.safetensors",
                folder_ / "out" / "model-00002-of-00002.safetensors");
  WriteText(folder_ / "out" / "model.safetensors.index.json", "{}");
  const auto again = Run(options);
  ASSERT_TRUE(again.ok()) << again.status().message();
  auto replaced = FilesOf(folder_ / "out");
  EXPECT_EQ(replaced.extract("notes.txt").mapped(), "mine");
  EXPECT_EQ(replaced, first);
  options.recipe = RecipeOf("fp8", 64, "fp8").value();
  ASSERT_TRUE(Run(options).ok());
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ(HfReader::Open(folder_ / "out").value()->spec().quantization, options.recipe.scheme);
}

TEST_F(ExportTest, AFolderThatNoExportSurelyWroteIsNotReplaced) {
  const fs::path out = folder_ / "out";
  QuantizeOptions options = Options("int8_wo");
  options.folder = FolderKind::kHuggingFace;
  const auto refused = [&](const char* what) {
    const auto before = FilesOf(out);
    const auto report = Run(options);
    EXPECT_FALSE(report.ok()) << what;
    EXPECT_THAT(report.status().message(),
                HasSubstr("out: exists and holds something else (no quantized folder that Tandem "
                          "wrote); choose a new or empty folder"));
    EXPECT_EQ(FilesOf(out), before) << what;
    fs::remove_all(out);
  };
  kFolder.Write(out);
  refused("a model");
  ASSERT_TRUE(Run(Options("int8_wo")).ok());
  refused("a checkpoint");
  const auto change = [&](const std::string& from, const std::string& to) {
    ASSERT_TRUE(Run(options).ok());
    std::string config = *ReadTextFile(out / "config.json");
    ASSERT_NE(config.find(from), std::string::npos);
    WriteText(out / "config.json", config.replace(config.find(from), from.size(), to));
  };
  change("\"quantization_config\"", "\"quantization\"");
  refused("a plain config");
  change("\"quant_method\"", "\"version\": \"0.9\", \"quant_method\"");
  refused("another tool's config");
  change("{", "");
  refused("a damaged config");
  ASSERT_TRUE(Run(options).ok());
  std::string weights = *ReadTextFile(out / "model.safetensors");
  for (size_t at = 0; (at = weights.find("xxh3_128:", at)) != std::string::npos;) weights[at] = 'y';
  WriteText(out / "model.safetensors", weights);
  refused("weights without checksums");
  ASSERT_TRUE(Run(options).ok());
  fs::remove(out / "model.safetensors");
  refused("no weights");
  // The other way round.
  ASSERT_TRUE(Run(options).ok());
  options.folder = FolderKind::kCheckpoint;
  EXPECT_THAT(Run(options).status().message(), HasSubstr("no config.json with rank0.safetensors"));
}

}  // namespace
}  // namespace tandem
