#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>
#include <vector>

#include "text/testing/tokenizers.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "tandem_text_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }

 private:
  std::filesystem::path path_;
};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Tokenizer, PutsBosInFrontOnlyWhenAsked) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const std::vector<int32_t> with = tokenizer->Encode("a word", true).value();
  const std::vector<int32_t> without = tokenizer->Encode("a word", false).value();
  ASSERT_FALSE(without.empty());
  EXPECT_EQ(with.front(), tokenizer->BosId());
  EXPECT_EQ(std::vector<int32_t>(with.begin() + 1, with.end()), without);
  EXPECT_TRUE(tokenizer->Encode("", false).value().empty());
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  EXPECT_EQ(tokenizer->BosId(), 0);
  EXPECT_EQ(tokenizer->PadId(), 1);
  EXPECT_THAT(tokenizer->EosIds(), ElementsAre(1, 2));
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_FALSE(tokenizer->IsSpecial(3));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_EQ(tokenizer->TokenToId("<|eot|>"), 2);
  EXPECT_EQ(tokenizer->TokenToId("<|no|>"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenBytes(2), "<|eot|>");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(1 << 30), "");
  EXPECT_EQ(LoadTestTokenizer("metaspace_bytes")->PadId(), std::nullopt);
}

TEST(Tokenizer, RefusesATextThatIsTooLong) {
  Tokenizer::Options options;
  options.max_text_bytes = 10;
  const auto tokenizer = Tokenizer::Load(TestTokenizerDir("byte_level"), options).value();
  EXPECT_TRUE(tokenizer->Encode("0123456789", false).ok());
  const Status status = tokenizer->Encode("0123456789a", false).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("11 bytes; at most 10"));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const Status status = tokenizer->Encode("a\xFF", false).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("UTF-8"));
}

TEST(Tokenizer, ExplainsWhatIsMissingOrBroken) {
  EXPECT_EQ(Tokenizer::Load("/no/such/folder").status().code(), Code::kNotFound);
  TemporaryFolder folder;
  const Status missing = Tokenizer::Load(folder.path()).status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("tokenizer.json"));
  folder.Write("tokenizer.json", "{\"version\": 1, ");
  EXPECT_EQ(Tokenizer::Load(folder.path()).status().code(), Code::kDataLoss);
}

TEST(Tokenizer, IsCompatibleWithACopyAndWithMoreSpecialTokens) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  EXPECT_TRUE(tokenizer->CompatibleWith(*LoadTestTokenizer("byte_level")).ok());

  TemporaryFolder folder;
  std::string json = ReadFile(TestTokenizerDir("byte_level") / "tokenizer.json");
  const std::string eot = R"({"id":2,"content":"<|eot|>")";
  const size_t at = json.find(eot);
  ASSERT_NE(at, std::string::npos);
  json.insert(at, R"({"id":700,"content":"<|extra|>","single_word":false,"lstrip":false,)"
                  R"("rstrip":false,"normalized":false,"special":true},)");
  folder.Write("tokenizer.json", json);
  const auto extended = Tokenizer::Load(folder.path()).value();
  EXPECT_GT(extended->VocabSize(), tokenizer->VocabSize());
  EXPECT_TRUE(tokenizer->CompatibleWith(*extended).ok());
  EXPECT_TRUE(extended->CompatibleWith(*tokenizer).ok());
}

TEST(Tokenizer, SaysWhereAnotherTokenizerDiffers) {
  const auto bytes = LoadTestTokenizer("byte_level");
  const auto marks = LoadTestTokenizer("metaspace_bytes");
  const Status status = bytes->CompatibleWith(*marks);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("token 3 is \"!\" in one and \"\\x00\" in the other"));
}

TEST(Tokenizer, SortsOrdinaryTokensByBytes) {
  const auto tokenizer = LoadTestTokenizer("metaspace_bytes");
  const std::span<const int32_t> ids = tokenizer->IdsByBytes();
  ASSERT_GT(ids.size(), 300u);
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_LE(tokenizer->TokenBytes(ids[i - 1]), tokenizer->TokenBytes(ids[i]));
  }
}

TEST(Tokenizer, IsSharedByThreads) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const std::vector<int32_t> expected = tokenizer->Encode("The quick brown fox", true).value();
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        equal[t] += tokenizer->Encode("The quick brown fox", true).value() == expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(200));
}

}  // namespace
}  // namespace tandem
