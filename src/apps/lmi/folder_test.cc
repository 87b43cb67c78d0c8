// Where in a folder the model is: Hugging Face folders, and repositories of engines in the layouts
// that LMI's releases had, also with a level more or less.
#include "apps/lmi/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "apps/testing/call.h"
#include "base/testing/temporary_folder.h"
#include "checkpoint/testing/family_fixtures.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kHf =
    R"({"architectures": ["LlamaForCausalLM"], "_name_or_path": "meta/Llama"})";
constexpr const char* kTrt07 = R"({"builder_config": {}, "plugin_config": {}})";
constexpr const char* kTrtLater = R"({"build_config": {}, "pretrained_config": {}})";

class LmiFolderTest : public testing::Test {
 protected:
  void Write(const fs::path& path, const std::string& text = "x") {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  // trt_llm_model_repo of the published layout; of the model's files only the small ones.
  void WriteRepository(const fs::path& at) {
    Write(at / "tensorrt_llm/1/trt_llm_model_float16_tp2_rank0.engine");
    Write(at / "tensorrt_llm/1/trt_llm_model_float16_tp2_rank1.engine");
    Write(at / "tensorrt_llm/1/config.json", kTrt07);
    Write(at / "tensorrt_llm/1/model.cache");
    Write(at / "tensorrt_llm/config.pbtxt");
    Write(at / "tensorrt_llm/config.json", kHf);
    Write(at / "tensorrt_llm/pytorch_model.bin.index.json");
    Write(at / "tensorrt_llm/requirements.txt");
    Write(at / "tensorrt_llm/special_tokens_map.json");
    Write(at / "tensorrt_llm/tokenizer_config.json");
    Write(at / "tensorrt_llm/tokenizer.model");
  }

  const TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(LmiFolderTest, AHuggingFaceFolderIsItself) {
  Write("config.json", kHf);
  Write("model-00001-of-00002.safetensors");
  Write("tokenizer.model");
  const LmiFolder found = FindServableFolder(root_).value();
  EXPECT_EQ(found.path, root_);
  EXPECT_EQ(found.tokenizer, fs::path());
  EXPECT_EQ(found.note, "");
}

TEST_F(LmiFolderTest, AModelBelowIsFoundAndTold) {
  Write("inner/config.json", kHf);
  Write("inner/pytorch_model.bin");
  const LmiFolder found = FindServableFolder(root_).value();
  EXPECT_EQ(found.path, root_ / "inner");
  EXPECT_THAT(found.note, HasSubstr("the model is in inner"));
}

TEST_F(LmiFolderTest, WeightsBesideAnEngineAreServedWhateverTheLevel) {
  WriteRepository("repo");
  Write("repo/tensorrt_llm/model.safetensors");
  for (const char* given : {"", "repo", "repo/tensorrt_llm"}) {
    const LmiFolder found = FindServableFolder(root_ / given).value();
    EXPECT_TRUE(fs::equivalent(found.path, root_ / "repo/tensorrt_llm")) << given;
    EXPECT_THAT(found.note, HasSubstr("an engine of TensorRT is not run")) << given;
  }
}

TEST_F(LmiFolderTest, AnEngineAloneIsRefusedWithWhatItNeeds) {
  WriteRepository("");
  const Status status = FindServableFolder(root_).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("tensorrt_llm/1/trt_llm_model_float16_tp2_rank0.engine is an engine "
                              "of TensorRT"),
                    HasSubstr("put the model's .safetensors files into"),
                    HasSubstr("option.model_id"), HasSubstr("config.json says meta/Llama")));
}

TEST_F(LmiFolderTest, RecognizesEnginesOfLaterReleases) {
  Write("config.json", kTrtLater);
  Write("rank0.engine");
  Write("tokenizer.json");
  EXPECT_THAT(FindServableFolder(root_).status().message(),
              HasSubstr("rank0.engine is an engine of TensorRT"));
}

TEST_F(LmiFolderTest, OurOwnEnginesAreServedWithTheTokenizerAbove) {
  const fs::path model = FixtureOf("mistral");
  WriteRepository("");
  fs::remove_all(root_ / "tensorrt_llm/1");
  const fs::path checkpoint = root_ / "ckpt";
  ASSERT_EQ(
      Call({"convert", "--model_dir", model.string(), "--output_dir", checkpoint.string()}).code,
      0);
  ASSERT_EQ(Call({"build", "--checkpoint_dir", checkpoint.string(), "--output_dir",
                  (root_ / "tensorrt_llm/1").string()})
                .code,
            0);
  fs::remove_all(checkpoint);
  for (const auto& entry : fs::directory_iterator(root_ / "tensorrt_llm/1")) {
    if (entry.path().filename().string().starts_with("tokenizer")) fs::remove(entry.path());
  }
  const LmiFolder found = FindServableFolder(root_).value();
  EXPECT_EQ(found.path, root_ / "tensorrt_llm/1");
  EXPECT_EQ(found.tokenizer, root_ / "tensorrt_llm");
}

TEST_F(LmiFolderTest, SaysWhereItLooked) {
  Write("a/b/readme.txt");
  EXPECT_THAT(FindServableFolder(root_).status().message(),
              AllOf(HasSubstr("holds no model"), HasSubstr((root_ / "a/b").string())));
  Write("config.json", kHf);
  EXPECT_THAT(FindServableFolder(root_).status().message(), HasSubstr("but no weights"));
}

TEST_F(LmiFolderTest, DoesNotLookIntoEndlesslyManyFolders) {
  for (int i = 0; i < 300; ++i) fs::create_directories(root_ / std::to_string(i) / "x");
  EXPECT_EQ(FindServableFolder(root_).status().code(), Code::kNotFound);
  fs::create_directory_symlink(root_, root_ / "0/loop");
  EXPECT_EQ(FindServableFolder(root_).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem::apps
