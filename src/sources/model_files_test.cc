#include "sources/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Names = std::vector<std::string>;

TEST(ModelFilesTest, TakesWhatAnEngineReads) {
  const Names names = {".gitattributes",
                       "README.md",
                       "config.json",
                       "generation_config.json",
                       "tokenizer.json",
                       "tokenizer.model",
                       "qwen.tiktoken",
                       "merges.txt",
                       "chat_template.jinja",
                       "model.safetensors",
                       "pytorch_model.bin",
                       "model.py",
                       "requirements.txt",
                       "original/consolidated.00.pth",
                       "onnx/model.onnx",
                       "consolidated.safetensors",
                       "notes.txt"};
  const ModelFiles files = ChooseModelFiles(names);
  EXPECT_THAT(files.settings,
              UnorderedElementsAre("config.json", "generation_config.json", "tokenizer.json",
                                   "tokenizer.model", "qwen.tiktoken", "merges.txt",
                                   "chat_template.jinja"));
  EXPECT_THAT(files.weights, ElementsAre("model.safetensors"));
  EXPECT_EQ(files.index, "");
  EXPECT_THAT(files.left_alone, ElementsAre("model.py", "requirements.txt"));
}

TEST(ModelFilesTest, PrefersSafetensorsAndNamesTheIndexOfShards) {
  const ModelFiles shards = ChooseModelFiles(
      Names{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
            "model.safetensors.index.json", "pytorch_model.bin"});
  EXPECT_EQ(shards.index, "model.safetensors.index.json");
  EXPECT_THAT(shards.weights, IsEmpty());
  const ModelFiles torch = ChooseModelFiles(
      Names{"config.json", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"});
  EXPECT_EQ(torch.index, "pytorch_model.bin.index.json");
  EXPECT_THAT(torch.settings, ElementsAre("config.json"));
  EXPECT_THAT(ChooseModelFiles(Names{"config.json", "rank0.engine", "rank1.engine"}).weights,
              ElementsAre("rank0.engine", "rank1.engine"));
}

TEST(ModelFilesTest, AnIndexNamesFilesBesideItOnly) {
  EXPECT_THAT(*ShardsOf(R"({"weight_map": {"a": "2.bin", "b": "1.bin", "c": "2.bin"}})"),
              ElementsAre("1.bin", "2.bin"));
  for (const char* text :
       {R"({"weight_map": {"a": "../x"}})", R"({"weight_map": {"a": "x/y"}})",
        R"({"weight_map": {"a": "/x"}})", R"({"weight_map": {"a": 1}})", R"({"weight_map": []})",
        R"([])", R"({)", R"({"weight_map": {"a": ""}})"}) {
    EXPECT_EQ(ShardsOf(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(ModelFilesTest, KnowsPathsThatStayInTheFolder) {
  for (const char* name : {"a", "a/b", "a..b", ".hidden", "späte/größe.json", "a b"}) {
    EXPECT_TRUE(IsSafeRelativePath(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("/a"), std::string(".."), std::string("a/../b"),
        std::string("./a"), std::string("a//b"), std::string("a/"), std::string("a\\b"),
        std::string("a\nb"), std::string("a\0b", 3), std::string("\xff"), std::string(256, 'x'),
        std::string("a/").append(std::string(256, 'x'))}) {
    EXPECT_FALSE(IsSafeRelativePath(name)) << name;
  }
}

}  // namespace
}  // namespace tandem
