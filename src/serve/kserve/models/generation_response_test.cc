#include "serve/kserve/models/generation_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

namespace tandem::serve::kserve {
namespace {

using testing::ElementsAre;

const Tensor* Find(const InferResponse& response, std::string_view name) {
  for (const Tensor& tensor : response.outputs) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

GenerationRequest Asked(size_t prompts, int64_t num_choices) {
  GenerationRequest asked;
  asked.prompts.resize(prompts);
  for (TextRequest& prompt : asked.prompts) prompt.num_choices = num_choices;
  return asked;
}

Shown Answer(const std::vector<int32_t>& tokens) {
  Shown shown;
  TokenPiece piece;
  piece.logits = {0.5f, 1.5f};
  for (const int32_t token : tokens) {
    piece.token = token;
    shown.Append(piece, -1.0f);
  }
  return shown;
}

TEST(GenerationResponseTest, AnswersOfOnePromptAreARowAndAreAsLongAsTheLongest) {
  const InferRequest request;
  const GenerationRequest asked = Asked(/*prompts=*/2, /*num_choices=*/2);
  const ResponseFormatter formatter(ModelKind::kTensorrtLlm, request, asked, 0);
  const std::vector<Shown> shown = {Answer({1}), Answer({2, 3, 4}), Answer({}), Answer({5, 6})};
  const std::vector<size_t> indices = {0, 1, 2, 3};
  const InferResponse response = formatter.Make(shown, indices);
  EXPECT_THAT(Find(response, "output_ids")->shape, ElementsAre(2, 2, 3));
  EXPECT_THAT(Integers(*Find(response, "output_ids")),
              ElementsAre(1, -1, -1, 2, 3, 4, -1, -1, -1, 5, 6, -1));
  EXPECT_THAT(Integers(*Find(response, "sequence_length")), ElementsAre(1, 3, 0, 2));
  EXPECT_THAT(Find(response, "generation_logits")->shape, ElementsAre(2, 2, 3, 2));
  EXPECT_EQ(Find(response, "batch_index"), nullptr);
}

TEST(GenerationResponseTest, OneAnswerOfSeveralSaysWhichItIs) {
  const InferRequest request;
  const GenerationRequest asked = Asked(/*prompts=*/2, /*num_choices=*/3);
  const ResponseFormatter formatter(ModelKind::kTensorrtLlm, request, asked, 0);
  const Shown shown = Answer({7, 8});
  const size_t index = 4;
  const InferResponse response = formatter.Make({&shown, 1}, {&index, 1});
  EXPECT_THAT(Find(response, "output_ids")->shape, ElementsAre(1, 1, 2));
  EXPECT_THAT(Integers(*Find(response, "batch_index")), ElementsAre(1));
  EXPECT_THAT(Integers(*Find(response, "sequence_index")), ElementsAre(1));
}

TEST(GenerationResponseTest, FiguresComeWhereTheyAreAskedForByFlagOrByName) {
  InferRequest request;
  request.outputs.resize(2);
  request.outputs[0].name = "text_output";
  request.outputs[1].name = "total_draft_tokens";
  GenerationRequest asked = Asked(/*prompts=*/1, /*num_choices=*/1);
  asked.return_num_output_tokens = true;
  const ResponseFormatter formatter(ModelKind::kBls, request, asked, 0);
  Usage usage;
  usage.output_tokens = 9;
  usage.drafts_proposed = 12;
  InferResponse response;
  formatter.AddFigures({&usage, 1}, response);
  ASSERT_EQ(response.outputs.size(), 2u);
  EXPECT_THAT(Integers(*Find(response, "num_output_tokens")), ElementsAre(9));
  EXPECT_THAT(Integers(*Find(response, "total_draft_tokens")), ElementsAre(12));
}

}  // namespace
}  // namespace tandem::serve::kserve
