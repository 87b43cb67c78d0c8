#include "serve/choice_decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/testing/byte_codec.h"

namespace tandem::serve {
namespace {

struct Decoded {
  std::string text;
  std::vector<std::string> pieces;
  bool stopped = false;
  int32_t num_tokens = 0;
};

// The byte \2 stands for the end token, whose name is shown.
Decoded Decode(const std::string& bytes, std::vector<std::string> stops) {
  const ByteCodec codec;
  std::shared_ptr<const StopStrings> compiled;
  if (!stops.empty()) compiled = *StopStrings::Compile(std::move(stops));
  ChoiceDecoder decoder(codec.NewDecoder({}, /*skip_special=*/false), compiled);
  Decoded result;
  std::vector<TokenPiece> pieces;
  for (const char byte : bytes) {
    SampledToken token{};
    token.token = byte == '\2' ? ByteCodec::kEnd : ByteCodec::TokenOf(byte);
    if (!decoder.Push(token, {}, pieces)) continue;
    result.stopped = true;
    break;
  }
  if (!result.stopped) decoder.Flush(pieces);
  for (const TokenPiece& piece : pieces) {
    result.text += piece.text;
    result.pieces.push_back(piece.text);
  }
  result.num_tokens = decoder.num_tokens();
  return result;
}

TEST(ChoiceDecoderTest, GivesAPieceForEveryTokenAndWholeCharactersOnly) {
  const Decoded result = Decode("h\xC3\xA9!", {});
  EXPECT_EQ(result.pieces, (std::vector<std::string>{"h", "", "\xC3\xA9", "!"}));
}

TEST(ChoiceDecoderTest, EndsBeforeAStopStringAndCountsItsTokens) {
  const Decoded result = Decode("one STOP two", {"STOP"});
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text, "one ");
  EXPECT_EQ(result.pieces.size(), 4u);
  EXPECT_EQ(result.num_tokens, 8);
}

TEST(ChoiceDecoderTest, AStopStringMayBeginOrEndInTheNameOfASpecialToken) {
  EXPECT_EQ(Decode("a\2b", {}).pieces, (std::vector<std::string>{"a", "</s>", "b"}));
  const Decoded inside = Decode("a\2b c", {"s>b"});
  EXPECT_TRUE(inside.stopped);
  EXPECT_EQ(inside.text, "a</");
  EXPECT_EQ(inside.num_tokens, 3);
  EXPECT_EQ(Decode("one\2", {"e</"}).text, "on");
}

TEST(ChoiceDecoderTest, ReleasesWhatOnlyLookedLikeAStopString) {
  const Decoded result = Decode("a STO b STOP", {"STOP"});
  EXPECT_EQ(result.text, "a STO b ");
}

TEST(ChoiceDecoderTest, ShowsWhatWasHeldBackWhenTheAnswerEnds) {
  const Decoded result = Decode("a STO", {"STOP"});
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.text, "a STO");
  EXPECT_EQ(result.pieces.size(), 5u);
}

TEST(ChoiceDecoderTest, StopsAtTheFirstOfSeveralAlsoInsideACharacterSequence) {
  EXPECT_EQ(Decode("x \xF0\x9F\x99\x82 y", {"y", "\xF0\x9F\x99\x82"}).text, "x ");
  EXPECT_EQ(Decode("abc", {"a"}).text, "");
}

TEST(ChoiceDecoderTest, AnUnfinishedCharacterBecomesAReplacementAtTheEnd) {
  EXPECT_EQ(Decode("a\xF0\x9F", {}).text, "a\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tandem::serve
