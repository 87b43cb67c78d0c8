#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "text/testing/tokenizers.h"

namespace tandem {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string Stream(const std::shared_ptr<Tokenizer>& tokenizer, const std::vector<int32_t>& ids,
                   Detokenizer::Options options = {}) {
  Detokenizer detokenizer(tokenizer, options);
  std::string text;
  for (int32_t id : ids) {
    const std::string piece = detokenizer.Push(id);
    // Every piece is whole characters.
    Utf8Stream check;
    EXPECT_EQ(check.Push(piece), piece);
    EXPECT_EQ(check.Flush(), "");
    text += piece;
  }
  return text + detokenizer.Flush();
}

TEST(Detokenizer, PiecesEqualTheReferenceDecoding) {
  for (const char* name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    std::ifstream file(TestTokenizerDir(name) / "cases.json");
    const auto cases = nlohmann::json::parse(file);
    ASSERT_GT(cases.size(), 10u);
    for (const auto& c : cases) {
      const std::vector<int32_t> ids = c["ids"];
      EXPECT_EQ(Stream(tokenizer, ids), c["decoded"].get<std::string>()) << name;
      EXPECT_EQ(Stream(tokenizer, ids, {.skip_special = false}),
                c["decoded_with_special"].get<std::string>())
          << name;
    }
  }
}

TEST(Detokenizer, RandomTokensStreamToTheWholeDecoding) {
  std::mt19937 random(7);
  for (const char* name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    std::uniform_int_distribution<int32_t> any(0, tokenizer->VocabSize() - 1);
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> ids(round % 40);
      for (int32_t& id : ids) id = any(random);
      // The bytes of all tokens at once, in one push.
      std::string bytes;
      for (int32_t id : ids) bytes += tokenizer->TokenBytes(id);
      Utf8Stream whole;
      std::string expected = whole.Push(bytes);
      expected += whole.Flush();
      EXPECT_EQ(Stream(tokenizer, ids, {.skip_special = false, .at_start = false}), expected);
    }
  }
}

TEST(Detokenizer, KeepsALeadingSpaceWhenItContinuesAPrompt) {
  for (const char* name : {"metaspace_bytes", "metaspace_decoder"}) {
    const auto tokenizer = LoadTestTokenizer(name);
    const std::vector<int32_t> ids = tokenizer->Encode("dog", false).value();
    EXPECT_EQ(Decode(tokenizer, ids), "dog");
    EXPECT_EQ(Decode(tokenizer, ids, {.at_start = false}), " dog");
  }
}

TEST(Detokenizer, HoldsBackHalfACharacter) {
  const auto tokenizer = LoadTestTokenizer("metaspace_bytes");
  const auto byte = [&](const char* name) { return *tokenizer->TokenToId(name); };
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.Push(byte("<0xF0>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0x9F>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0x91>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0xA9>")), "\xF0\x9F\x91\xA9");
  EXPECT_EQ(detokenizer.Push(byte("<0xE2>")), "");
  EXPECT_EQ(detokenizer.Push(byte("<0x41>")), std::string(kReplacement) + "A");
  EXPECT_EQ(detokenizer.Push(byte("<0xE2>")), "");
  EXPECT_EQ(detokenizer.Flush(), kReplacement);
}

TEST(Utf8Stream, ReplacesEachMaximalInvalidPart) {
  const struct {
    std::string bytes;
    int replacements;
    std::string rest;
  } cases[] = {
      {"\xC0\xAF", 2, ""},          // overlong: neither byte may stand
      {"\xE0\x80\x80", 3, ""},      // overlong in three bytes
      {"\xED\xA0\x80", 3, ""},      // a surrogate
      {"\xF4\x90\x80\x80", 4, ""},  // beyond U+10FFFF
      {"\xF0\x9F\x92z", 1, "z"},    // three good bytes of four
      {"\xE2\x82z", 1, "z"},        // two of three
      {"\xFF", 1, ""},
      {"\x80z", 1, "z"},
      {"\xE2\x82", 1, ""},  // unfinished at the end
  };
  for (const auto& c : cases) {
    std::string expected;
    for (int i = 0; i < c.replacements; ++i) expected += kReplacement;
    expected += c.rest;
    Utf8Stream whole;
    std::string at_once = whole.Push(c.bytes);
    at_once += whole.Flush();
    EXPECT_EQ(at_once, expected);
    Utf8Stream single;
    std::string one_by_one;
    for (char byte : c.bytes) one_by_one += single.Push(std::string_view(&byte, 1));
    EXPECT_EQ(one_by_one + single.Flush(), expected);
  }
}

TEST(Utf8Stream, PassesEveryCharacterThrough) {
  std::string all;
  for (uint32_t c = 1; c < 0x110000; c = c < 0x3000 ? c + 1 : c + 61) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (c < 0x80) {
      all += static_cast<char>(c);
    } else if (c < 0x800) {
      all += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      all += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
              static_cast<char>(0x80 | (c & 63))};
    } else {
      all += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
              static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
  }
  Utf8Stream stream;
  std::string text;
  for (size_t i = 0; i < all.size(); i += 7)
    text += stream.Push(std::string_view(all).substr(i, 7));
  EXPECT_EQ(text + stream.Flush(), all);
}

}  // namespace
}  // namespace tandem
