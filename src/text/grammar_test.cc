#include "text/grammar.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tandem_text.h"
#include "text/testing/tokenizers.h"

namespace tandem {
namespace {

class GrammarTest : public testing::Test {
 protected:
  GrammarState Start(GrammarKind kind, std::string_view text) {
    return set_->Compile(kind, text).value()->Clone().value();
  }
  std::vector<uint32_t> Mask(GrammarState& state) {
    std::vector<uint32_t> mask((static_cast<size_t>(tokenizer_->VocabSize()) + 31) / 32, ~0u);
    EXPECT_TRUE(state.FillMask(mask, tokenizer_->EosIds()).ok());
    return mask;
  }
  bool AllowsEnd(GrammarState& state) {
    const int32_t end = tokenizer_->EosIds()[0];
    return Mask(state)[static_cast<size_t>(end / 32)] >> (end % 32) & 1;
  }

  const std::shared_ptr<Tokenizer> tokenizer_ = LoadTestTokenizer("byte_level");
  const std::shared_ptr<GrammarSet> set_ =
      GrammarSet::Create(*tokenizer_, tokenizer_->VocabSize()).value();
};

TEST_F(GrammarTest, EndIsAllowedExactlyWhereTheGrammarAccepts) {
  GrammarState state = Start(GrammarKind::kRegex, "ab?");
  EXPECT_FALSE(AllowsEnd(state));
  const std::vector<int32_t> tokens = tokenizer_->Encode("a", false).value();
  EXPECT_EQ(state.Advance(tokens).value(), tokens.size());
  EXPECT_TRUE(state.IsAccepting());
  EXPECT_TRUE(AllowsEnd(state));
  EXPECT_TRUE(state.RollBack(tokens.size()).ok());
  EXPECT_FALSE(AllowsEnd(state));
}

TEST_F(GrammarTest, CopiesGoTheirOwnWays) {
  GrammarState state = Start(GrammarKind::kChoice, R"(["ab", "ac"])");
  GrammarState copy = state.Clone().value();
  EXPECT_TRUE(state.Advance(tokenizer_->Encode("ab", false).value()).ok());
  EXPECT_TRUE(state.IsAccepting());
  EXPECT_FALSE(copy.IsAccepting());
  EXPECT_EQ(copy.Advance(tokenizer_->Encode("ac", false).value()).value(),
            tokenizer_->Encode("ac", false).value().size());
}

TEST_F(GrammarTest, AGrammarIsCompiledOnce) {
  const std::string schema = R"({"type": "string"})";
  const auto first = set_->Compile(GrammarKind::kJsonSchema, schema).value();
  EXPECT_EQ(set_->Compile(GrammarKind::kJsonSchema, schema).value(), first);
  EXPECT_NE(set_->Compile(GrammarKind::kLooseJsonSchema, schema).value(), first);
  EXPECT_GT(first->Bytes(), 0u);
}

TEST_F(GrammarTest, OldGrammarsMakeRoom) {
  const auto first = set_->Compile(GrammarKind::kRegex, "a{0}b").value();
  for (int i = 1; i < 600; ++i) {
    ASSERT_TRUE(set_->Compile(GrammarKind::kRegex, "a{" + std::to_string(i) + "}").ok());
  }
  EXPECT_EQ(first.use_count(), 1);
}

TEST_F(GrammarTest, RefusalsAreSentences) {
  const Status status =
      set_->Compile(GrammarKind::kJsonSchema, R"({"not": {"type": "null"}})").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "the keyword \"not\" of the JSON schema is not supported");
  const GrammarLimits small{.max_text_bytes = 10};
  const auto set = GrammarSet::Create(*tokenizer_, tokenizer_->VocabSize(), small).value();
  EXPECT_EQ(set->Compile(GrammarKind::kRegex, "aaaaaaaaaaa").status().message(),
            "the regular expression has 11 bytes; at most 10 are compiled");
}

TEST(GrammarLimits, AreThoseOfTheLibrary) {
  TandemTextGrammarLimits theirs;
  tandem_text_grammar_default_limits(&theirs);
  const GrammarLimits ours;
  EXPECT_EQ(ours.max_text_bytes, theirs.max_text_bytes);
  EXPECT_EQ(ours.max_items_in_row, theirs.max_items_in_row);
  EXPECT_EQ(ours.initial_lexer_fuel, theirs.initial_lexer_fuel);
  EXPECT_EQ(ours.step_lexer_fuel, theirs.step_lexer_fuel);
  EXPECT_EQ(ours.step_max_items, theirs.step_max_items);
  EXPECT_EQ(ours.max_lexer_states, theirs.max_lexer_states);
  EXPECT_EQ(ours.max_grammar_size, theirs.max_grammar_size);
  EXPECT_EQ(ours.log_level, theirs.log_level);
}

TEST_F(GrammarTest, ManyThreadsMayCompileAndCopy) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        GrammarState state = Start(GrammarKind::kRegex, "x{" + std::to_string(1 + i % 5) + "}");
        Mask(state);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tandem
