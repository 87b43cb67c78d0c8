#include "serve/openai/request/request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tandem::serve::openai {
namespace {

TEST(OpenAiRequestTest, EverySamplingParameterIsReadByItsName) {
  ForEachSamplingParameter([](const SamplingParameter& parameter, const auto& members) {
    const auto read = [&](std::string_view value) {
      return ParseCall(Endpoint::kCompletions,
                       fmt::format(R"({{"prompt": "a", "{}": {}}})", parameter.name, value));
    };
    const Result<Call> call = read("1");
    ASSERT_TRUE(call.ok()) << call.status().message();
    EXPECT_EQ(call->prompts.front().sampling.*members.given, 1) << parameter.name;
    EXPECT_EQ(read("\"1\"").status().field(), parameter.name);
    EXPECT_EQ(read("1.5").ok(), !parameter.is_integer()) << parameter.name;
  });
}

TEST(OpenAiRequestTest, ABiasIsAtMostTheProtocolsHundred) {
  const auto read = [](std::string_view bias) {
    return ParseCall(Endpoint::kCompletions,
                     fmt::format(R"({{"prompt": "a", "logit_bias": {{"5": {}}}}})", bias));
  };
  const Result<Call> call = read("-100");
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->prompts.front().logit_bias.front().second, -100);
  for (const char* bias : {"-100.5", "101"}) {
    EXPECT_EQ(read(bias).status().message(), "logit_bias: must be a number from -100 to 100");
  }
}

Result<Call> Read(std::string_view fields) {
  return ParseCall(Endpoint::kCompletions, fmt::format(R"({{"prompt": "a", {}}})", fields));
}

TEST(OpenAiRequestTest, StopTokenIdsAreRead) {
  const Result<Call> call = Read(R"("stop_token_ids": [5, 0])");
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->prompts.front().stop_token_ids, (std::vector<int32_t>{5, 0}));
  for (const char* bad : {"5", "[-1]", "[1.5]", "[4294967296]", "[\"a\"]", "{}"}) {
    EXPECT_EQ(Read(fmt::format(R"("stop_token_ids": {})", bad)).status().field(), "stop_token_ids")
        << bad;
  }
}

TEST(OpenAiRequestTest, BestOfIsGeneratedAndNIsReturned) {
  const Result<Call> call = Read(R"("n": 2, "best_of": 5)");
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->num_choices, 2);
  EXPECT_EQ(call->prompts.front().num_choices, 5);
  EXPECT_EQ(call->prompts.front().num_top_logprobs, 0);  // they decide
  EXPECT_FALSE(call->logprobs);
  EXPECT_EQ(Read(R"("n": 3, "best_of": 1)")->prompts.front().num_choices, 3);
  EXPECT_TRUE(Read(R"("n": 3, "best_of": 3, "stream": true)").ok());
  for (const char* bad : {R"("n": 3, "best_of": 2)", R"("n": 1, "best_of": -1)",
                          R"("n": 1, "best_of": 2, "stream": true)", R"("best_of": 1e3)"}) {
    EXPECT_EQ(Read(bad).status().field(), "best_of") << bad;
  }
  EXPECT_EQ(Read(R"("n": 0, "best_of": 2)").status().field(), "n");
  const auto prompts = ParseCall(Endpoint::kCompletions, R"({"prompt":["a","b"],"best_of":65})");
  EXPECT_EQ(prompts.status().field(), "best_of");
}

TEST(OpenAiRequestTest, EchoAsksForThePromptAndWithLogprobsForItsScores) {
  const Result<Call> call = Read(R"("echo": true, "logprobs": 1, "max_tokens": 1)");
  ASSERT_TRUE(call.ok()) << call.status().message();
  const TextRequest& text = call->prompts.front();
  EXPECT_TRUE(call->echo.prompt && call->echo.answer && text.return_prompt);
  EXPECT_EQ(text.num_prompt_logprobs, 1);
  EXPECT_EQ(Read(R"("echo": true)")->prompts.front().num_prompt_logprobs, -1);
  EXPECT_FALSE(Read(R"("logprobs": 1)")->prompts.front().return_prompt);
  const Result<Call> score = Read(R"("echo": true, "logprobs": 1, "max_tokens": 0)");
  EXPECT_FALSE(score->echo.answer);
  EXPECT_EQ(score->prompts.front().max_tokens, 1);
  EXPECT_EQ(Read(R"("max_tokens": 0)")->prompts.front().max_tokens, 0);  // refused later
  for (const char* bad : {R"("prompt_logprobs": -1)", R"("prompt_logprobs": 21)",
                          R"("prompt_logprobs": 1, "stream": true)"}) {
    EXPECT_EQ(Read(bad).status().field(), "prompt_logprobs") << bad;
  }
  const auto chat = ParseCall(Endpoint::kChat,
                              R"({"messages": [{"role": "user", "content": "a"}], "echo": true})");
  EXPECT_EQ(chat.status().field(), "echo");
  const auto scored_chat = ParseCall(
      Endpoint::kChat,
      R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 0, "prompt_logprobs": 1})");
  ASSERT_TRUE(scored_chat.ok());
  EXPECT_EQ(scored_chat->prompts.front().max_tokens, 0);  // an answer is part of a chat
}

TEST(OpenAiRequestTest, LowerPrioritiesRunFirst) {
  double last = 1;
  for (const char* level : {"-9223372036854775808", "-1000", "-1", "0", "1", "2", "1000000"}) {
    const Result<Call> call = Read(fmt::format(R"("priority": {})", level));
    ASSERT_TRUE(call.ok()) << call.status().message();
    const double weight = *call->prompts.front().priority;
    EXPECT_TRUE(weight <= last && weight > 0) << level;
    last = weight;
  }
  EXPECT_EQ(*Read(R"("priority": 0)")->prompts.front().priority, 0.5);
}

TEST(OpenAiRequestTest, WhatCannotMatterIsAcceptedAndWhatMustIsRefusedByName) {
  const Result<Call> call =
      Read(R"("user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "store": false,
              "prediction": {}, "length_penalty": 1, "suffix": "", "modalities": ["text"],
              "audio": null, "use_beam_search": false)");
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_TRUE(call->ignored.empty());
  for (const char* field :
       {R"("store": true)", R"("suffix": "b")", R"("audio": {"voice": "x"})",
        R"("modalities": ["text", "audio"])", R"("use_beam_search": true)",
        R"("include_stop_str_in_output": true)", R"("truncate_prompt_tokens": 5)"}) {
    const std::string name(field + 1, std::string_view(field + 1).find('"'));
    EXPECT_EQ(Read(field).status().field(), name);
  }
}

TEST(OpenAiRequestTest, UnknownMembersAreNamed) {
  const Result<Call> call = Read(R"("tempperature": 1, "nothing": null, "model": "m", "x": {})");
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->ignored, (std::vector<std::string>{"tempperature", "x"}));
  std::string many = R"("a0": 1)";
  for (int i = 1; i < 1000; ++i) many += fmt::format(R"(, "a{}": 1)", i);
  EXPECT_EQ(Read(many)->ignored.size(), 16u);
  const auto chat =
      ParseCall(Endpoint::kChat, R"({"messages": [{"role": "user", "content": "a"}]})");
  ASSERT_TRUE(chat.ok());
  EXPECT_TRUE(chat->ignored.empty());
}

}  // namespace
}  // namespace tandem::serve::openai
