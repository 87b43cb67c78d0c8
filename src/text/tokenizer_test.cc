#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "text/testing/tokenizers.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<Tokenizer> LoadWithExtra(const TemporaryFolder& folder) {
  WriteTokenizerWithExtra(folder);
  return Tokenizer::Load(folder.path()).value();
}

// The tokenizer byte_level, whose special token <|eot|> is called <|stop|>.
std::shared_ptr<Tokenizer> LoadWithRenamed(const TemporaryFolder& folder) {
  std::string json = ReadFile(TestTokenizerDir("byte_level") / "tokenizer.json");
  const std::string old_name = "<|eot|>";
  for (size_t at; (at = json.find(old_name)) != std::string::npos;) {
    json.replace(at, old_name.size(), "<|stop|>");
  }
  folder.Write("tokenizer.json", json);
  return Tokenizer::Load(folder.path()).value();
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
  const auto extended = LoadWithExtra(folder);
  EXPECT_GT(extended->VocabSize(), tokenizer->VocabSize());
  EXPECT_TRUE(tokenizer->CompatibleWith(*extended).ok());
  EXPECT_TRUE(extended->CompatibleWith(*tokenizer).ok());
}

TEST(Tokenizer, NamesWhatDiffersBetweenCompatibleOnes) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const auto difference = [&](const Tokenizer& other) {
    return tokenizer->HarmlessDifference("the target", other, "the draft");
  };
  EXPECT_EQ(difference(*LoadTestTokenizer("byte_level")), "");
  TemporaryFolder more;
  EXPECT_EQ(difference(*LoadWithExtra(more)), "the target has 628 tokens, the draft 629");
  TemporaryFolder renamed;
  const auto other = LoadWithRenamed(renamed);
  EXPECT_TRUE(tokenizer->CompatibleWith(*other).ok());
  EXPECT_EQ(difference(*other),
            R"(special token 2 is "<|eot|>" in the target and "<|stop|>" in the draft)");
}

TEST(Tokenizer, FitsAModelThatHasARowForEachOrdinaryToken) {
  TemporaryFolder folder;
  const auto tokenizer = LoadWithExtra(folder);
  EXPECT_TRUE(tokenizer->FitsVocabulary(1024).ok());
  EXPECT_TRUE(tokenizer->FitsVocabulary(629).ok());
  EXPECT_TRUE(tokenizer->FitsVocabulary(628).ok()) << "the special one may have no row";
  const Status status = tokenizer->FitsVocabulary(627);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("its token 627, "));
  EXPECT_THAT(status.message(), HasSubstr("vocabulary goes from 0 to 626"));
}

TEST(Tokenizer, KnowsTheIdOfASpecialTokenByItsText) {
  const auto tokenizer = LoadTestTokenizer("metaspace_bytes");
  EXPECT_EQ(tokenizer->SpecialId("</s>"), 2);
  EXPECT_EQ(tokenizer->SpecialId("<0x0A>"), std::nullopt) << "an ordinary token";
  EXPECT_EQ(tokenizer->SpecialId("no token"), std::nullopt);
  EXPECT_EQ(tokenizer->SpecialId(""), std::nullopt);
}

TEST(Tokenizer, SaysWhereAnotherTokenizerDiffers) {
  const auto bytes = LoadTestTokenizer("byte_level");
  const auto marks = LoadTestTokenizer("metaspace_bytes");
  const Status status = bytes->CompatibleWith(*marks);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("token 3 is \"!\" in one and \"\\u0000\" in the other"));
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
