#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "apps/models/calibration.h"
#include "checkpoint/testing/family_fixtures.h"
#include "checkpoint/testing/hf_folder.h"
#include "text/testing/tokenizers.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The tiny ChatGLM-6B with the rows and the ids of the small tokenizer of that family.
class ChatGlmTextsTest : public FolderTest {
 protected:
  static constexpr int32_t kMask = 5, kStart = 8;
  static constexpr int64_t kRows = 700;

  ChatGlmTextsTest() {
    const fs::path fixture = FixturesFolder() / "chatglm6b";
    auto config = nlohmann::json::parse(ReadFile(fixture / "config.json"));
    const int64_t rows = config["vocab_size"];
    config["vocab_size"] = kRows;
    config["gmask_token_id"] = kMask;
    config["mask_token_id"] = 4;
    config["bos_token_id"] = kStart;
    WriteText(folder_ / "config.json", config.dump());
    const auto file = SafetensorsFile::Open(fixture / "model.safetensors").value();
    const std::vector<float> zeros(
        static_cast<size_t>(kRows * config["hidden_size"].get<int64_t>()));
    std::vector<NamedTensor> tensors;
    for (const auto& [name, stored] : file->tensors()) {
      Tensor tensor = stored;
      if (tensor.dim(0) == rows) {
        tensor.data = const_cast<float*>(zeros.data());
        tensor.shape = {kRows, tensor.dim(1)};
      }
      tensors.push_back({name, tensor});
    }
    EXPECT_TRUE(WriteSafetensors(folder_ / "model.safetensors", tensors).ok());
    for (const char* name : {"ice_text.model", "tokenizer_config.json"}) {
      fs::copy_file(TestTokenizerDir("folders") / "chatglm" / name, folder_ / name);
    }
  }

  Result<CalibrationTexts> Read(const std::string& text, int64_t longest) {
    WriteText(folder_ / "texts.txt", text);
    return ReadCalibrationTexts(
        folder_,
        {.tokenizer_dir = {}, .dataset = folder_ / "texts.txt", .size = 8, .longest = longest});
  }
};

TEST_F(ChatGlmTextsTest, ALongTextIsCutBeforeTheTokensThatEndAPrompt) {
  const auto whole = Read("Hello world\n", 512);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  std::vector<int32_t> expected = whole->samples.at(0);
  ASSERT_EQ(expected.size(), 10u);
  expected.erase(expected.begin() + 4, expected.begin() + 8);
  EXPECT_EQ(expected[4], kMask);
  EXPECT_EQ(expected[5], kStart);
  const auto cut = Read("Hello world\nHello\n", 6);
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  ASSERT_EQ(cut->samples.size(), 2u);
  EXPECT_EQ(cut->samples[0], expected);
}

TEST_F(ChatGlmTextsTest, AFolderIsNoText) {
  fs::create_directory(folder_ / "texts");
  const auto read = ReadCalibrationTexts(
      folder_, {.tokenizer_dir = {}, .dataset = folder_ / "texts", .size = 8, .longest = 512});
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("texts: is no text file; give"));
}

TEST_F(ChatGlmTextsTest, AMessageAboutASampleNamesItsLineAndTheCut) {
  const auto texts = Read("\nHello world\n", 1);
  ASSERT_FALSE(texts.ok());
  EXPECT_THAT(texts.status().message(),
              HasSubstr("texts.txt:2, cut to 1 tokens: prompt: does not"));
}

}  // namespace
}  // namespace tandem::apps
