#include "serve/openai/request.h"

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

TEST(OpenAiToolsTest, ChoicesAreReadAndThoseThatNeedAGrammarAreRefused) {
  const auto read = [](const std::string& members) {
    return ReadTools(*ParseJson(
        R"({"tools": [{"type": "function", "function": {"name": "add"}},
                      {"type": "function", "function": {"name": "now"}}])" +
        members + "}"));
  };
  EXPECT_EQ(read("")->choice, ToolChoice::kAuto);
  EXPECT_EQ(read("")->tools.names, (std::vector<std::string>{"add", "now"}));
  EXPECT_TRUE(read("")->tools.parallel);
  EXPECT_FALSE(read(R"(, "parallel_tool_calls": false)")->tools.parallel);
  EXPECT_TRUE(read(R"(, "tool_choice": "none")")->tools.names.empty());
  for (const char* choice : {R"("required")", R"("sometimes")", R"({"type": "function"})", "1",
                             R"({"type": "function", "function": {"name": "add"}})",
                             R"({"type": "function", "function": {"name": "sub"}})"}) {
    EXPECT_EQ(read(std::string(R"(, "tool_choice": )") + choice).status().field(), "tool_choice");
  }
  EXPECT_FALSE(ReadTools(*ParseJson(R"({"tool_choice": "required"})")).ok());
  EXPECT_TRUE(ReadTools(*ParseJson(R"({"tool_choice": "auto"})"))->tools.names.empty());
}

TEST(OpenAiToolsTest, TheSchemaOfACallNamesToolsAndArguments) {
  const Json tools = *ParseJson(
      R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
           "properties": {"x": {"type": "number"}}}}},
          {"type": "function", "function": {"name": "now"}}])");
  const std::string now =
      R"({"type":"object","properties":{"name":{"const":"now"},"arguments":{"type":"object"}},)"
      R"("required":["name","arguments"],"additionalProperties":false})";
  const ToolFormat& hermes = ToolFormats().front();
  EXPECT_EQ(ToolCallSchema(tools, "now", hermes), R"({"anyOf":[)" + now + "]}");
  EXPECT_EQ(ToolCallSchema(tools, "", hermes),
            R"({"anyOf":[{"type":"object","properties":{"name":{"const":"add"},"arguments":)"
            R"({"type":"object","properties":{"x":{"type":"number"}}}},)"
            R"("required":["name","arguments"],"additionalProperties":false},)" +
                now + "]}");
}

}  // namespace
}  // namespace tandem::serve::openai
