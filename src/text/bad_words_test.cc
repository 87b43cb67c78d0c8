#include "text/bad_words.h"

#include <gtest/gtest.h>

#include <random>

#include "text/detokenizer.h"
#include "text/testing/tokenizers.h"

namespace tandem {
namespace {

std::vector<uint32_t> AllAllowed(const Tokenizer& tokenizer) {
  return std::vector<uint32_t>((tokenizer.VocabSize() + 31) / 32, ~0u);
}

bool IsSet(const std::vector<uint32_t>& bits, int32_t id) { return bits[id / 32] >> (id % 32) & 1; }

TEST(BadWords, MaskEqualsAskingForEveryToken) {
  std::mt19937 random(3);
  for (const char* name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    const std::vector<std::string> words = {"bad",  "badge", "ad b", "e",  "stop words",
                                            "aaaa", "aab",   "é",    " t", "\n"};
    const auto bad = BadWords::Compile(tokenizer, words).value();
    for (int state = 0; state < bad->NumStates(); ++state) {
      std::vector<uint32_t> bits = AllAllowed(*tokenizer);
      bad->Mask(state, bits);
      for (int32_t id = 0; id < tokenizer->VocabSize(); ++id) {
        ASSERT_EQ(IsSet(bits, id), !bad->Banned(state, id)) << name << " " << state << " " << id;
      }
    }
  }
}

TEST(BadWords, NeverAppearHoweverTokensSpellThem) {
  std::mt19937 random(5);
  for (const char* name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    // Only tokens made of these characters, so that the words would occur all the time.
    std::vector<int32_t> pool;
    for (int32_t id = 0; id < tokenizer->VocabSize(); ++id) {
      const std::string_view bytes = tokenizer->TokenBytes(id);
      const bool few = bytes.find_first_not_of("abdtewr ") == std::string_view::npos;
      if (!bytes.empty() && few) pool.push_back(id);
    }
    pool.push_back(*tokenizer->EosIds().begin());  // text continues after a special token
    ASSERT_GT(pool.size(), 8u);
    const std::vector<std::string> words = {"bad", "tab", "ba b", "water"};
    const auto bad = BadWords::Compile(tokenizer, words).value();
    std::vector<int32_t> ids;
    int state = bad->Start();
    int refused = 0;
    while (ids.size() < 20000) {
      const int32_t id = pool[random() % pool.size()];
      if (bad->Banned(state, id)) {
        ++refused;
        continue;
      }
      state = bad->Next(state, id);
      ids.push_back(id);
    }
    EXPECT_GT(refused, 100);
    const std::string text = Decode(tokenizer, ids);
    for (const std::string& word : words) EXPECT_EQ(text.find(word), std::string::npos) << word;
  }
}

TEST(BadWords, BansNothingThatDoesNotCompleteAWord) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const auto bad = BadWords::Compile(tokenizer, std::vector<std::string>{"dog"}).value();
  const auto id = [&](const char* token) { return *tokenizer->TokenToId(token); };
  int state = bad->Next(bad->Start(), id("d"));
  EXPECT_FALSE(bad->Banned(state, id("o")));
  state = bad->Next(state, id("o"));
  EXPECT_TRUE(bad->Banned(state, id("g")));
  EXPECT_FALSE(bad->Banned(state, id("d")));
  EXPECT_FALSE(bad->Banned(bad->Start(), id("g")));
  // A special token leaves the text unchanged.
  EXPECT_EQ(bad->Next(state, id("<|eot|>")), state);
  EXPECT_FALSE(bad->Banned(state, id("<|eot|>")));
}

TEST(BadWords, EmptyWordsAreIgnored) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const auto bad = BadWords::Compile(tokenizer, std::vector<std::string>{"", ""}).value();
  std::vector<uint32_t> bits = AllAllowed(*tokenizer);
  bad->Mask(bad->Start(), bits);
  EXPECT_EQ(bits, AllAllowed(*tokenizer));
}

TEST(BadWords, MaskLeavesOtherBitsAsTheyAre) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const auto bad = BadWords::Compile(tokenizer, std::vector<std::string>{"a"}).value();
  std::vector<uint32_t> bits((tokenizer->VocabSize() + 31) / 32, 0);
  bad->Mask(bad->Start(), bits);
  EXPECT_EQ(bits, std::vector<uint32_t>(bits.size(), 0));
}

TEST(BadWords, WritesNoBitBeyondAMaskOfFewerTokens) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const std::vector<std::string> words = {"a", "stop"};
  const auto bad = BadWords::Compile(tokenizer, words).value();
  std::vector<uint32_t> whole = AllAllowed(*tokenizer);
  std::vector<uint32_t> guarded(whole.size(), ~0u);
  const int state = bad->Next(bad->Start(), *tokenizer->TokenToId("s"));
  bad->Mask(state, whole);
  const size_t model_words = 5;
  bad->Mask(state, std::span(guarded).first(model_words));
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(guarded[i], i < model_words ? whole[i] : ~0u) << i;
  }
  EXPECT_NE(whole.back(), ~0u) << "the test wants banned tokens beyond the model's";
}

TEST(BadWords, RefusesTooManyBytes) {
  const auto tokenizer = LoadTestTokenizer("byte_level");
  const std::vector<std::string> words(10000, "0123456789");
  EXPECT_EQ(BadWords::Compile(tokenizer, words).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
