#include "engine_folder/source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/convert.h"
#include "checkpoint/testing/hf_folder.h"
#include "engine_folder/build.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class SourceTest : public FolderTest {
 protected:
  void ExpectRefused(const fs::path& path, std::initializer_list<std::string> parts) const {
    const auto model = OpenModel(path);
    ASSERT_FALSE(model.ok());
    for (const std::string& part : parts) {
      EXPECT_NE(model.status().message().find(part), std::string::npos)
          << part << " not in: " << model.status().message();
    }
  }
};

TEST_F(SourceTest, RecognisesFolderCheckpointAndEngine) {
  HfFolder{}.Write(folder_ / "hf");
  WriteText(folder_ / "hf" / "tokenizer.json", "{}");
  WriteText(folder_ / "hf" / "generation_config.json", R"({"do_sample": false})");
  ASSERT_TRUE(
      Convert({.model_dir = folder_ / "hf", .output_dir = folder_ / "checkpoint", .tp_size = 2})
          .ok());
  ASSERT_TRUE(
      Build({.checkpoint_dir = folder_ / "checkpoint", .output_dir = folder_ / "engine"}).ok());
  const std::pair<const char*, ModelSource::Kind> kinds[] = {
      {"hf", ModelSource::Kind::kHuggingFace},
      {"checkpoint", ModelSource::Kind::kCheckpoint},
      {"engine", ModelSource::Kind::kEngine}};
  for (const auto& [name, kind] : kinds) {
    const auto model = OpenModel(folder_ / name);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->kind, kind);
    EXPECT_EQ(model->spec().layers.front().attention.num_heads, 8);
    EXPECT_EQ(model->tokenizer_dir, folder_ / name);
    EXPECT_TRUE(fs::exists(model->tokenizer_dir / "generation_config.json"));
    EXPECT_EQ(model->limits.has_value(), kind == ModelSource::Kind::kEngine);
    EXPECT_TRUE(model->weights->Get({WeightRole::kQuery, 0}).ok());
  }
  EXPECT_TRUE(CheckHuggingFaceFolder(folder_ / "hf").ok());
  EXPECT_EQ(CheckHuggingFaceFolder(folder_ / "checkpoint").message(),
            (folder_ / "checkpoint").string() +
                ": is a checkpoint; name the Hugging Face folder that it was made from");
  EXPECT_NE(CheckHuggingFaceFolder(folder_ / "engine").message().find("is an engine"),
            std::string::npos);
}

TEST_F(SourceTest, AnAbsentFolderIsNamed) {
  for (const char* path : {"absent", "absent/", "./absent", "/absent", "/absent/a", "a/b/absent"}) {
    const Status status = OpenModel(path).status();
    EXPECT_TRUE(status.message().ends_with("does not exist")) << status.message();
  }
}

TEST_F(SourceTest, SaysWhatItLookedFor) {
  ExpectRefused(folder_ / "absent", {"absent", "does not exist"});
  ExpectRefused(folder_, {"config.json", "Hugging Face", "checkpoint", "engine"});
  WriteText(folder_ / "config.json", "{\"model_type\": \"x\"}");
  ExpectRefused(folder_, {"config.json", "architectures", "build_config"});
  ExpectRefused(folder_ / "config.json", {"is a file"});
  WriteText(folder_ / "config.json", "{\"architectures\": [\"BertModel\"]}");
  ExpectRefused(folder_, {"BertModel", "supported are: LlamaForCausalLM"});
  WriteText(folder_ / "config.json", "{");
  ExpectRefused(folder_, {"config.json", "not valid JSON"});
}

TEST_F(SourceTest, APipeForATokenizerIsRefusedWhenItIsRead) {
  HfFolder{}.Write(folder_);
  ASSERT_EQ(::mkfifo((folder_ / "tokenizer.json").c_str(), 0600), 0);
  EXPECT_EQ(OpenModel(folder_)->tokenizer_dir, folder_);
  const Status copied =
      Convert({.model_dir = folder_, .output_dir = folder_ / "checkpoint"}).status();
  EXPECT_EQ(copied.code(), Code::kInvalidArgument);
  EXPECT_NE(copied.message().find("tokenizer.json: not a regular file"), std::string::npos)
      << copied.message();
}

TEST_F(SourceTest, MakesADummyOfAConfigAlone) {
  WriteText(folder_ / "config.json", HfFolder{}.Config());
  for (const fs::path& path : {folder_, folder_ / "config.json"}) {
    const auto model = OpenDummy(path);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->kind, ModelSource::Kind::kDummy);
    EXPECT_EQ(model->spec().vocab_size, 96);
    EXPECT_TRUE(model->tokenizer_dir.empty());
  }
  EXPECT_FALSE(OpenDummy(folder_ / "absent.json").ok());
}

}  // namespace
}  // namespace tandem
