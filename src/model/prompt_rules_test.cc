#include "model/prompt_rules.h"

#include <gtest/gtest.h>

#include "ops/round_rules.h"

namespace tandem {
namespace {

using ops::rules::SecondPositionOf;
using ops::rules::TurnOf;

PromptRules Glm() { return {.prefix = {.start_id = 9, .mask_ids = {7, 8}}, .table_rows = 100}; }

TEST(PromptRules, CausalPromptsStandWhereTheyAre) {
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto layout = LayOutPrompt({}, prompt);
  EXPECT_EQ(*layout, ops::PromptLayout{});
  EXPECT_EQ(TurnOf(*layout, 5), 5);
  EXPECT_EQ(SecondPositionOf(*layout, 5), 0);
  std::string key = "tenant";
  AddToCacheKey(*layout, prompt, key);
  EXPECT_EQ(key, "tenant");
}

TEST(PromptRules, TheOutputStandsAtTheMask) {
  // In the middle, though the other one comes before it.
  const auto layout = LayOutPrompt(Glm(), std::vector<int32_t>{8, 1, 7, 2, 9, 7});
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  EXPECT_EQ(*layout, (ops::PromptLayout{.prefix_len = 4, .mask_position = 2}));
  const int32_t turns[] = {0, 1, 2, 3, 2, 2, 2}, seconds[] = {0, 0, 0, 0, 1, 2, 3};
  for (int32_t position = 0; position < 7; ++position) {
    EXPECT_EQ(TurnOf(*layout, position), turns[position]) << position;
    EXPECT_EQ(SecondPositionOf(*layout, position), seconds[position]) << position;
  }
}

TEST(PromptRules, NamesTheTokenThatAPromptLacks) {
  const auto refusal = [](const std::vector<int32_t>& prompt) {
    const Status status = LayOutPrompt(Glm(), prompt).status();
    EXPECT_EQ(status.field(), "prompt");  // by which each protocol finds its own word
    return status.message();
  };
  EXPECT_EQ(refusal({1, 7}),
            "prompt: does not hold the token 9, with which the model's output begins");
  EXPECT_EQ(refusal({9}), "prompt: has nothing before the token 9");
  EXPECT_EQ(refusal({1, 9, 7}),
            "prompt: holds none of the tokens 7, 8, of which one stands where the model's output "
            "belongs");
}

TEST(PromptRules, ACutPromptKeepsTheTokensOfItsLayout) {
  using Tokens = std::vector<int32_t>;
  const auto cut = [](const Tokens& prompt, int64_t longest, const PromptRules& rules = Glm()) {
    return CutPrompt(rules, prompt, longest);
  };
  EXPECT_EQ(cut({1, 2, 3, 4}, 3, {}), (Tokens{1, 2, 3}));
  EXPECT_EQ(cut({1, 2, 3, 4}, 5), (Tokens{1, 2, 3, 4}));
  // The mask at the end of the text, before it, and within it.
  EXPECT_EQ(cut({1, 2, 3, 4, 7, 9}, 4), (Tokens{1, 2, 7, 9}));
  EXPECT_EQ(cut({1, 2, 3, 4, 7, 9}, 5), (Tokens{1, 2, 3, 7, 9}));
  EXPECT_EQ(cut({1, 2, 3, 4, 7, 9}, 2), (Tokens{7, 9}));
  EXPECT_EQ(cut({1, 7, 2, 3, 4, 9}, 4), (Tokens{1, 7, 2, 9}));
  EXPECT_EQ(cut({1, 2, 3, 7, 4, 5, 9}, 4), (Tokens{1, 2, 7, 9}));
  EXPECT_EQ(cut({1, 2, 8, 3, 7, 4, 9}, 6), (Tokens{1, 2, 8, 3, 7, 9}));
  // What follows the beginning of the output is cut as any text.
  EXPECT_EQ(cut({1, 7, 9, 2, 3}, 4), (Tokens{1, 7, 9, 2}));
  EXPECT_EQ(cut({1, 7, 9, 2, 3}, 3), (Tokens{1, 7, 9}));
  for (const Tokens& prompt : {Tokens{1, 2, 8, 3, 7, 4, 9}, Tokens{8, 1, 1, 1, 1, 1, 9, 1, 1}}) {
    for (int64_t longest = 2; longest < 10; ++longest) {
      EXPECT_TRUE(LayOutPrompt(Glm(), cut(prompt, longest)).ok()) << longest;
    }
  }
  // There is no way to lay these out.
  EXPECT_EQ(cut({1, 7, 9}, 1), (Tokens{1}));
  EXPECT_EQ(cut({1, 2, 3}, 2), (Tokens{1, 2}));
}

// What one token of a prefix is depends on all of them.
TEST(PromptRules, DifferentPrefixesShareNothing) {
  const auto key = [](const std::vector<int32_t>& prompt) {
    std::string key = "tenant";
    AddToCacheKey(*LayOutPrompt(Glm(), prompt), prompt, key);
    return key;
  };
  const std::string one = key({1, 2, 7, 9});
  EXPECT_TRUE(one.starts_with("tenant"));
  EXPECT_NE(one, key({1, 3, 7, 9}));
  EXPECT_NE(one, key({1, 2, 3, 7, 9}));
  EXPECT_EQ(one, key({1, 2, 7, 9, 5}));  // what follows sees it, and is not seen
}

TEST(PromptRules, LongerPromptsTurnByLaterTables) {
  const PromptRules qwen = {.prefix = {}, .trained = 4, .table_rows = 100};
  const auto first_turn = [&](size_t length) {
    return LayOutPrompt(qwen, std::vector<int32_t>(length, 1))->first_turn;
  };
  EXPECT_EQ(first_turn(4), 0);
  EXPECT_EQ(first_turn(5), 100);
  EXPECT_EQ(first_turn(8), 100);
  EXPECT_EQ(first_turn(9), 200);
  EXPECT_EQ(TurnOf(*LayOutPrompt(qwen, std::vector<int32_t>(5, 1)), 3), 103);
}

TEST(PromptRules, APassHasTheArraysThatItsModelNeeds) {
  ModelSpec spec;
  spec.layers.resize(2);
  EXPECT_EQ(RowFormOf(spec), RowForm{});
  spec.layers[0].attention.rope.scaling = {.kind = RopeScaling::Kind::kNtkSteps,
                                           .original_max_positions = 4};
  EXPECT_EQ(RowFormOf(spec), RowForm{.turns = true}) << "a prompt's length chooses its table";
  spec.layers.assign(2, {});
  spec.prefix = Glm().prefix;
  EXPECT_EQ(RowFormOf(spec), (RowForm{.turns = true, .prefixes = true}));
  spec.second_position_rows = 8;
  EXPECT_EQ(RowFormOf(spec), (RowForm{.turns = true, .second_positions = true, .prefixes = true}));
}

}  // namespace
}  // namespace tandem
