#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "text/testing/tokenizers.h"

namespace tandem {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string Stream(Detokenizer detokenizer, std::span<const int32_t> ids) {
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
      EXPECT_EQ(Stream(Detokenizer(tokenizer), ids), c["decoded"].get<std::string>()) << name;
      EXPECT_EQ(Stream(Detokenizer(tokenizer, /*skip_special=*/false), ids),
                c["decoded_with_special"].get<std::string>())
          << name;
    }
  }
}

TEST(Detokenizer, LinesOfManyScriptsStreamToTheWholeDecoding) {
  std::vector<std::string> lines;
  std::ifstream file(TestTokenizerDir("folders") / "lines.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 1000u);
  const std::vector<std::string> folders = TestTokenizerFolders();
  ASSERT_GE(folders.size(), 20u);
  for (const std::string& name : folders) {
    const auto tokenizer = LoadTestTokenizer(name);
    for (const std::string& line : lines) {
      const std::vector<int32_t> ids = tokenizer->Encode(line, /*add_special=*/true).value();
      const std::string whole = Decode(tokenizer, ids);
      ASSERT_EQ(Stream(Detokenizer(tokenizer), ids), whole) << name;
      // An answer begins anywhere: after any part of it as a prompt the rest comes out unchanged.
      const std::span prompt = std::span(ids).first(ids.size() / 2);
      Detokenizer answer(tokenizer);
      std::string text;
      for (const int32_t id : prompt) text += answer.Push(id);
      Detokenizer past(tokenizer);
      past.GoPast(prompt);
      ASSERT_EQ(text + Stream(past, std::span(ids).subspan(prompt.size())), whole) << name;
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
      for (int32_t id : ids) {
        bytes += id == ids.front() && bytes.empty() ? tokenizer->FirstBytes(id)
                                                    : tokenizer->TokenBytes(id);
      }
      Utf8Stream whole;
      std::string expected = whole.Push(bytes);
      expected += whole.Flush();
      EXPECT_EQ(Stream(Detokenizer(tokenizer, /*skip_special=*/false), ids), expected);
    }
  }
}

TEST(Detokenizer, TextAfterAPromptCompletesTheDecodedWhole) {
  for (const char* name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    std::ifstream file(TestTokenizerDir(name) / "cases.json");
    for (const auto& c : nlohmann::json::parse(file)) {
      const std::vector<int32_t> ids = c["ids"];
      const std::string whole = c["decoded"];
      for (size_t cut = 0; cut <= ids.size(); ++cut) {
        const auto prompt = std::span(ids).first(cut);
        Detokenizer detokenizer(tokenizer);
        // A character that a prompt leaves unfinished is shown with the text that follows.
        std::string shown;
        for (const int32_t id : prompt) shown += detokenizer.Push(id);
        Detokenizer after(tokenizer);
        after.GoPast(prompt);
        EXPECT_EQ(shown + Stream(after, std::span(ids).subspan(cut)), whole) << name << " " << cut;
      }
    }
  }
}

TEST(Detokenizer, DropsTheFirstSpaceWhereTheDecoderDoesAndNowhereElse) {
  const std::map<std::string, bool> drops = {
      {"byte_level", false},       {"byte_level_gpt2", false}, {"metaspace_bytes", true},
      {"metaspace_decoder", true}, {"metaspace_kept", false},  {"word_piece", true},
  };
  for (const char* name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    const auto begins_word = [&](int32_t id) {
      return tokenizer->TokenBytes(id).starts_with(" t");
    };
    const auto found = std::ranges::find_if(tokenizer->IdsByBytes(), begins_word);
    ASSERT_NE(found, tokenizer->IdsByBytes().end()) << name;
    const std::vector<int32_t> ids = {*found};
    const std::string word(tokenizer->TokenBytes(*found));
    const std::string alone = drops.at(name) ? word.substr(1) : word;
    EXPECT_EQ(Decode(tokenizer, ids), alone) << name;
    Detokenizer after(tokenizer);
    after.GoPast(tokenizer->Encode("lazy", true).value());
    EXPECT_EQ(Stream(after, ids), word) << name;
    // A prompt of special tokens alone has no text: the answer starts the text.
    Detokenizer at_start(tokenizer);
    at_start.GoPast(std::vector<int32_t>{*tokenizer->BosId()});
    EXPECT_EQ(Stream(at_start, ids), alone) << name;
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
      {"\xC0\xAF", 2, ""},          // overlong: neither byte may remain
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
