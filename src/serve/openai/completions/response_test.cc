#include "serve/openai/completions/response.h"

#include <gtest/gtest.h>

namespace tandem::serve::openai {
namespace {

TextChoice ChoiceOf(std::vector<float> logprobs) {
  TextChoice choice;
  for (const float logprob : logprobs) {
    TokenPiece& piece = choice.pieces.emplace_back();
    piece.logprob = logprob;
  }
  return choice;
}

TEST(OpenAiResponseTest, TheBestChoicesHaveTheHighestMeanLogprob) {
  std::vector<TextChoice> answers;
  answers.push_back(ChoiceOf({-1, -1, -1, -1}));  // the sum would make the next one better
  answers.push_back(ChoiceOf({-2}));
  answers.push_back(ChoiceOf({}));
  answers.push_back(ChoiceOf({-3}));
  answers.push_back(ChoiceOf({-1, -2}));
  answers.push_back(ChoiceOf({-0.5}));
  using Choices = std::vector<const TextChoice*>;
  EXPECT_EQ(BestChoices(answers, 3, 2),
            (Choices{&answers[0], &answers[1], &answers[5], &answers[4]}));
  EXPECT_EQ(BestChoices(answers, 3, 1), (Choices{&answers[0], &answers[5]}));
  EXPECT_EQ(BestChoices(answers, 6, 6).front(), &answers[0]);
  EXPECT_EQ(BestChoices(answers, 6, 6).back(), &answers[5]);
}

}  // namespace
}  // namespace tandem::serve::openai
