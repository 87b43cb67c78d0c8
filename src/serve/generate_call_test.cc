#include "serve/generate_call.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

class GenerateCallTest : public testing::Test {
 protected:
  explicit GenerateCallTest(FakeEngineOptions options = {})
      : engine_(std::move(options)),
        model_(std::make_shared<const Model>(Model{
            "m", false,
            std::make_shared<GenerateService>(engine_, codec_, GenerationDefaults(), clock_), 0})) {
  }

  static std::vector<TextRequest> Prompts(const std::vector<std::string>& texts,
                                          const TextRequest& options = {}) {
    std::vector<TextRequest> prompts(texts.size(), options);
    for (size_t i = 0; i < texts.size(); ++i) prompts[i].text = texts[i];
    return prompts;
  }
  static TextRequest Streamed() {
    TextRequest options;
    options.stream = true;
    return options;
  }
  // Waits for the next news.
  static CallNews Wait(GenerateCall& call, TextEvent& event) {
    CallNews news = CallNews::kNone;
    EXPECT_TRUE(Eventually([&] { return (news = call.Next(event)) != CallNews::kNone; }));
    return news;
  }
  // Waits for the end of a call that is not streamed: every answer is reported as it is complete.
  static CallNews WaitForEnd(GenerateCall& call, TextEvent& event) {
    std::set<int32_t> complete;
    CallNews news = Wait(call, event);
    for (; news == CallNews::kEvent; news = Wait(call, event)) {
      EXPECT_TRUE(complete.insert(event.choice).second);
      EXPECT_NE(call.answers().at(static_cast<size_t>(event.choice)).finish, TextFinish::kNone);
    }
    if (news == CallNews::kDone) {
      EXPECT_EQ(complete.size(), call.answers().size());
    }
    return news;
  }

  FakeEngine engine_;
  ByteCodec codec_;
  SteadyClock clock_;
  ModelPtr model_;
};

class SlowGenerateCallTest : public GenerateCallTest {
 protected:
  SlowGenerateCallTest() : GenerateCallTest(Options()) {}
  static FakeEngineOptions Options() {
    FakeEngineOptions options;
    options.step = std::chrono::milliseconds(1);
    return options;
  }
};

TEST_F(GenerateCallTest, AStreamedCallReportsItsEventsAndThenItsEnd) {
  GenerateCall call(model_, Prompts({"tandem", "emoji"}, Streamed()), {});
  std::vector<std::string> texts(2);
  TextEvent event;
  CallNews news = Wait(call, event);
  for (; news == CallNews::kEvent; news = Wait(call, event)) {
    for (const TokenPiece& piece : event.pieces) {
      texts.at(static_cast<size_t>(event.choice)) += piece.text;
    }
  }
  EXPECT_EQ(news, CallNews::kDone);
  EXPECT_EQ(texts[0], "One behind the other.");
  EXPECT_EQ(texts[1], "h\xC3\xA9llo \xF0\x9F\x99\x82!");
  // Reported text is not kept.
  ASSERT_EQ(call.answers().size(), 2u);
  EXPECT_EQ(call.answers()[0].text, "");
  EXPECT_EQ(call.answers()[0].finish, TextFinish::kStop);
}

TEST_F(GenerateCallTest, AnUnstreamedCallCollectsAllAnswersAndSumsTheirFigures) {
  TextRequest options;
  options.num_choices = 2;
  options.max_tokens = 3;
  options.seed = 7;
  GenerateCall call(model_, Prompts({"tandem", "emoji"}, options), {});
  TextEvent event;
  ASSERT_EQ(WaitForEnd(call, event), CallNews::kDone);
  std::vector<std::string> texts;
  for (const TextChoice& answer : call.answers()) {
    texts.push_back(answer.text);
    EXPECT_EQ(answer.num_tokens, 3);
    EXPECT_TRUE(answer.pieces.empty());  // log-probabilities were not requested
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"One", "One", "h\xC3\xA9", "h\xC3\xA9"}));
  const CallUsage usage = call.usage();
  EXPECT_EQ(usage.prompt_tokens, 7 + 6);  // each prompt once
  EXPECT_EQ(usage.completion_tokens, 4 * 3);
  EXPECT_EQ(usage.seed, 7u);
}

TEST_F(GenerateCallTest, KeepsThePiecesOfAnswersWithLogProbabilities) {
  TextRequest options;
  options.num_top_logprobs = 0;
  options.max_tokens = 2;
  GenerateCall call(model_, Prompts({"tandem"}, options), {});
  TextEvent event;
  ASSERT_EQ(WaitForEnd(call, event), CallNews::kDone);
  ASSERT_EQ(call.answers().at(0).pieces.size(), 2u);
  EXPECT_EQ(call.answers()[0].pieces[1].text, "n");
  EXPECT_EQ(call.answers()[0].pieces[1].logprob, -0.25f);
}

TEST_F(GenerateCallTest, ARefusalIsTheFirstNewsWhateverWasAskedFor) {
  for (const int64_t num_choices : {int64_t{0}, int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
    TextRequest options = Streamed();
    options.num_choices = num_choices;
    GenerateCall call(model_, Prompts({"tandem", "emoji"}, options), {});
    TextEvent event;
    EXPECT_EQ(call.Next(event), CallNews::kFailed);
    EXPECT_EQ(event.error.field(), "n");
    EXPECT_EQ(call.usage().prompt_tokens, 0);
  }
}

TEST_F(SlowGenerateCallTest, AFailureOfOnePromptEndsTheOthers) {
  GenerateCall call(model_, Prompts({"endless", "fail later"}), {});
  TextEvent event;
  EXPECT_EQ(Wait(call, event), CallNews::kFailed);
  EXPECT_EQ(event.error.message(), "the device is lost");
  EXPECT_TRUE(Eventually([&] { return engine_.open_sequences() == 0; }));
}

TEST_F(SlowGenerateCallTest, ADroppedCallFreesItsSequences) {
  auto call = std::make_unique<GenerateCall>(model_, Prompts({"endless", "endless"}), [] {});
  EXPECT_TRUE(Eventually([&] { return engine_.open_sequences() == 2; }));
  call.reset();
  EXPECT_TRUE(Eventually([&] { return engine_.open_sequences() == 0; }));
}

TEST_F(GenerateCallTest, EveryAnswerToAPromptHasIt) {
  for (const bool is_stream : {false, true}) {
    TextRequest options;
    options.stream = is_stream;
    options.num_choices = 2;
    options.return_prompt = true;
    options.num_prompt_logprobs = 1;
    GenerateCall call(model_, Prompts({"tandem", "\xC3\xA9"}, options), [] {});
    TextEvent event;
    CallNews news = Wait(call, event);
    while (news == CallNews::kEvent) news = Wait(call, event);
    ASSERT_EQ(news, CallNews::kDone);
    ASSERT_EQ(call.answers().size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      const auto& prompt = call.answers()[i].prompt;
      ASSERT_NE(prompt, nullptr) << i;
      EXPECT_EQ(prompt->text, i < 2 ? "tandem" : "\xC3\xA9");
      ASSERT_EQ(prompt->pieces.size(), i < 2 ? 7u : 3u);  // <s> too
      EXPECT_TRUE(std::isnan(prompt->pieces[0].logprob));
      EXPECT_EQ(prompt->pieces[2].logprob, -0.5f);
      EXPECT_EQ(prompt->pieces[2].top.size(), 1u);
      EXPECT_EQ(prompt->pieces[2].text, i < 2 ? "a" : "\xC3\xA9");
    }
  }
}

}  // namespace
}  // namespace tandem::serve
