#include "serve/grammar_constraint.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/testing/tokenizers.h"

namespace tandem::serve {
namespace {

using Mask = std::vector<uint32_t>;

class GrammarConstraintTest : public testing::Test {
 protected:
  std::unique_ptr<GrammarConstraint> Make(GrammarKind kind, std::string_view text,
                                          const GrammarLimits& limits = {}) {
    const auto set = GrammarSet::Create(*tokenizer_, tokenizer_->VocabSize(), limits).value();
    const auto ends = tokenizer_->EosIds();
    return GrammarConstraint::Create(
               set->Compile(kind, text).value(),
               std::make_shared<const std::vector<int32_t>>(ends.begin(), ends.end()), tokenizer_)
        .value();
  }
  std::vector<int32_t> Tokens(std::string_view text) {
    return tokenizer_->Encode(text, false).value();
  }
  Mask MaskOf(TokenConstraint& constraint, std::span<const int32_t> ahead) {
    Mask mask((static_cast<size_t>(tokenizer_->VocabSize()) + 31) / 32, ~0u);
    constraint.FillMask(ahead, mask);
    return mask;
  }
  static bool Has(const Mask& mask, int32_t id) {
    return mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1;
  }
  static void Commit(TokenConstraint& constraint, std::span<const int32_t> tokens) {
    constraint.Commit(tokens.data(), static_cast<int32_t>(tokens.size()));
  }

  const std::shared_ptr<Tokenizer> tokenizer_ = LoadTestTokenizer("byte_level");
};

constexpr std::string_view kText = R"({"name": "a b c", "n": [1, 2, 33]})";

TEST_F(GrammarConstraintTest, MasksAreEqualWithAndWithoutDrafts) {
  const std::vector<int32_t> tokens = Tokens(kText);
  const auto plain = Make(GrammarKind::kJsonObject, "");
  std::vector<Mask> masks;
  for (const int32_t token : tokens) {
    masks.push_back(MaskOf(*plain, {}));
    ASSERT_TRUE(Has(masks.back(), token));
    plain->Commit(&token, 1);
  }
  masks.push_back(MaskOf(*plain, {}));
  EXPECT_TRUE(Has(masks.back(), tokenizer_->EosIds()[0]));

  // Rounds of drafts that hold in part, wrong drafts, and copies in between.
  std::mt19937 random(7);
  std::unique_ptr<TokenConstraint> drafted = Make(GrammarKind::kJsonObject, "");
  for (size_t at = 0; at < tokens.size();) {
    const size_t most = std::min<size_t>(random() % 6, tokens.size() - at);
    std::vector<int32_t> drafts(tokens.begin() + static_cast<ptrdiff_t>(at),
                                tokens.begin() + static_cast<ptrdiff_t>(at + most));
    for (size_t i = 0; i <= most; ++i) {
      ASSERT_EQ(MaskOf(*drafted, std::span(drafts).first(i)), masks[at + i]) << at << "+" << i;
    }
    for (size_t i = 0; i <= most; ++i) {  // once more, in any order
      const size_t length = random() % (most + 1);
      ASSERT_EQ(MaskOf(*drafted, std::span(drafts).first(length)), masks[at + length]);
    }
    if (random() % 3 == 0) drafted = drafted->Clone();
    if (most > 0 && random() % 3 == 0) {
      drafts.back() = tokenizer_->EosIds()[0];  // no token follows it
      EXPECT_EQ(MaskOf(*drafted, drafts), Mask(masks[0].size()));
    }
    const size_t taken = random() % (most + 1);
    Commit(*drafted, std::span(tokens).subspan(at, taken));
    at += taken;
    if (most == 0) Commit(*drafted, std::span(tokens).subspan(at++, 1));
  }
}

TEST_F(GrammarConstraintTest, ForcedTextIsSpelledAsTheTokenizerSpellsIt) {
  const std::string text = R"({"first_name":"x","second_name":"y"})";
  const auto schema = R"({"type": "object", "properties": {"first_name": {"const": "x"},
      "second_name": {"enum": ["y", "z"]}}, "required": ["first_name", "second_name"],
      "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}})";
  const auto constraint = Make(GrammarKind::kJsonSchema, schema);
  const auto plain = Make(GrammarKind::kJsonSchema, schema);
  std::string written;
  int forced = 0;
  for (const int32_t token : Tokens(text)) {
    std::string ahead;
    for (const int32_t next : constraint->Forced()) ahead += tokenizer_->TokenBytes(next);
    EXPECT_EQ(ahead, text.substr(written.size()).substr(0, ahead.size()));
    forced += ahead.empty() ? 0 : 1;
    // Asking changes no mask.
    EXPECT_EQ(MaskOf(*constraint, {}), MaskOf(*plain, {})) << written;
    EXPECT_EQ(MaskOf(*constraint, std::span(&token, 1)), MaskOf(*plain, std::span(&token, 1)));
    EXPECT_EQ(constraint->Clone()->Forced(), constraint->Forced());
    written += tokenizer_->TokenBytes(token);
    constraint->Commit(&token, 1);
    plain->Commit(&token, 1);
  }
  EXPECT_GT(forced, 3);
  EXPECT_TRUE(constraint->Forced().empty()) << "it is whole";
  EXPECT_TRUE(Make(GrammarKind::kRegex, "[ab]+")->Forced().empty());
}

TEST_F(GrammarConstraintTest, AWholeOutputEndsAtADeadEnd) {
  const auto constraint = Make(GrammarKind::kChoice, R"(["ab"])");
  EXPECT_FALSE(constraint->AtDeadEnd().ok());
  Commit(*constraint, Tokens("ab"));
  Mask none(100, 0);
  constraint->FillMask({}, none);
  EXPECT_TRUE(constraint->AtDeadEnd().ok());
}

TEST_F(GrammarConstraintTest, ADraftBeyondALimitLeavesTheOutputAlone) {
  // The parser may hold few items in a row: some states of this grammar need more.
  std::string grammar = "start: \"x\" (\"y\" | \"z\" rest)\nrest: ";
  for (int i = 0; i < 40; ++i) {
    grammar += (i > 0 ? "| \"q\" r" : "\"q\" r") + std::to_string(i) + " ";
  }
  for (int i = 0; i < 40; ++i) {
    grammar += "\nr" + std::to_string(i) + ": \"" + std::to_string(i) + "\"";
  }
  const auto constraint = Make(GrammarKind::kLark, grammar, {.max_items_in_row = 30});
  Commit(*constraint, Tokens("x"));
  const Mask before = MaskOf(*constraint, {});
  std::vector<int32_t> bad = Tokens("z");
  const Mask after = MaskOf(*constraint, bad);
  EXPECT_EQ(after, Mask(after.size())) << "over the limit";
  EXPECT_FALSE(constraint->AtDeadEnd().ok());
  EXPECT_EQ(MaskOf(*constraint, {}), before);
  Commit(*constraint, Tokens("y"));
  EXPECT_TRUE(Has(MaskOf(*constraint, {}), tokenizer_->EosIds()[0]));
}

TEST_F(GrammarConstraintTest, ATokenOutsideTheGrammarIsADeadEndForEver) {
  const auto constraint = Make(GrammarKind::kChoice, R"(["ab", "ac"])");
  Commit(*constraint, Tokens("x"));
  for (int i = 0; i < 2; ++i) {
    const Mask mask = MaskOf(*constraint, {});
    EXPECT_EQ(mask, Mask(mask.size()));
    EXPECT_EQ(constraint->AtDeadEnd().message(), "the grammar does not admit the output");
    Commit(*constraint, Tokens("ab"));
  }
  const auto copy = constraint->Clone();
  EXPECT_EQ(MaskOf(*copy, {}), Mask(MaskOf(*copy, {}).size()));
}

}  // namespace
}  // namespace tandem::serve
