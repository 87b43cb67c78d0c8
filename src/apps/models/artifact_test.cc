#include "apps/models/artifact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/testing/temporary_folder.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class LmiArtifactTest : public testing::Test {
 protected:
  void WriteModel(const std::string& name) const {
    fs::create_directories(root_ / name / "1");
    for (const char* file : {"config.pbtxt", "config.json", "1/config.json", "1/rank0.engine"}) {
      folder_.Write(name + "/" + file, "{}");
    }
  }

  const TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(LmiArtifactTest, TheEngineIsFoundFromTheRootAndFromTheModelsFolder) {
  WriteModel("tensorrt_llm");
  folder_.Write("serving.properties", "");
  EXPECT_EQ(EngineOfArtifact(root_).value(), root_ / "tensorrt_llm" / "1");
  EXPECT_EQ(EngineOfArtifact(root_ / "tensorrt_llm").value(), root_ / "tensorrt_llm" / "1");
  EXPECT_EQ(EngineOfArtifact(root_ / "tensorrt_llm" / "1").value(), root_ / "tensorrt_llm" / "1");
}

TEST_F(LmiArtifactTest, AnotherFolderStandsForItself) {
  fs::create_directories(root_ / "model");
  EXPECT_EQ(EngineOfArtifact(root_).value(), root_);
  EXPECT_EQ(EngineOfArtifact(root_ / "absent").value(), root_ / "absent");
  WriteModel("tensorrt_llm");
  fs::remove(root_ / "tensorrt_llm" / "1" / "rank0.engine");
  EXPECT_EQ(EngineOfArtifact(root_).value(), root_);
  // A model with an artifact in it is the model.
  WriteModel("tensorrt_llm");
  folder_.Write("config.json", "{}");
  EXPECT_EQ(EngineOfArtifact(root_).value(), root_);
}

TEST_F(LmiArtifactTest, OfSeveralModelsOneHasToBeNamed) {
  WriteModel("b");
  WriteModel("a");
  const auto engine = EngineOfArtifact(root_);
  EXPECT_EQ(engine.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(engine.status().message(), HasSubstr("holds 2 models (a, b)"));
  EXPECT_EQ(EngineOfArtifact(root_ / "b").value(), root_ / "b" / "1");
}

TEST_F(LmiArtifactTest, FilesBesideTheEngineMakeItAnArtifact) {
  fs::create_directories(root_ / "hf");
  folder_.Write("hf/config.json", R"({"architectures": ["LlamaForCausalLM"]})");
  folder_.Write("hf/tokenizer.json", "{}");
  WriteModel("out");
  const fs::path out = root_ / "out";
  fs::remove(out / "config.pbtxt");
  EXPECT_EQ(EngineOfArtifact(out).value(), out);
  ASSERT_TRUE(WriteArtifactFiles(root_ / "hf", root_ / "hf", 16, out).ok());
  EXPECT_EQ(EngineOfArtifact(out).value(), out / "1");
  EXPECT_EQ(*ReadTextFile(out / "config.json"), *ReadTextFile(root_ / "hf" / "config.json"));
  EXPECT_TRUE(fs::exists(out / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(out / "tokenizer_config.json"));
  EXPECT_THAT(*ReadTextFile(out / "config.pbtxt"), HasSubstr("max_batch_size: 16\n"));
}

TEST_F(LmiArtifactTest, AFolderWithAnythingElseIsNotWrittenInto) {
  EXPECT_TRUE(CheckArtifactFolder(root_ / "absent").ok());
  WriteModel("tensorrt_llm");
  fs::create_directories(root_ / "tensorrt_llm" / "checkpoint.calibration");
  EXPECT_TRUE(CheckArtifactFolder(root_ / "tensorrt_llm").ok());
  folder_.Write("tensorrt_llm/model.safetensors", "");
  const Status refused = CheckArtifactFolder(root_ / "tensorrt_llm");
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace tandem::apps
