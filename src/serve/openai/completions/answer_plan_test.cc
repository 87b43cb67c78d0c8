#include "serve/openai/completions/answer_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "serve/testing/byte_codec.h"

namespace tandem::serve::openai {
namespace {

Call ChatCall(const std::string& members) {
  const Result<Call> call = ParseCall(
      Endpoint::kChat, R"({"messages": [{"role": "user", "content": "Hi"}])" + members + "}");
  EXPECT_TRUE(call.ok()) << call.status().message();
  return *call;
}

AnswerPlan Plan(const ByteCodec& codec, Call& call) {
  return *PlanAnswer({}, codec, std::make_shared<CallIds>(1), call);
}

constexpr const char* kTools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";

TEST(AnswerPlanTest, TheTemplateThatRendersTheRequestShowsItsFormats) {
  ByteCodec codec;
  codec.chat_source = "default </think>";
  codec.tool_chat_source = "tool_use <tool_call>";
  Call with_tools = ChatCall(kTools);
  const AnswerPlan plan = Plan(codec, with_tools);
  ASSERT_NE(plan.format.tools, nullptr);
  EXPECT_EQ(plan.format.tools->name, "hermes");
  EXPECT_EQ(plan.format.reasoning, nullptr);
  Call without = ChatCall("");
  EXPECT_NE(Plan(codec, without).format.reasoning, nullptr);
  Call unwanted = ChatCall(std::string(kTools) + R"(, "tool_choice": "none")");
  EXPECT_NE(Plan(codec, unwanted).format.reasoning, nullptr);
}

TEST(AnswerPlanTest, AGrammarBeginsAfterReasoningThatThePromptHasOpened) {
  const ByteCodec codec;
  Call call = ChatCall(R"(, "regex": "[0-9]")");
  Plan(codec, call);
  const TextRequest& prompt = call.prompts.front();
  ASSERT_TRUE(prompt.reasoning.has_value());
  EXPECT_EQ(prompt.reasoning->end, "</think>");
  EXPECT_EQ(prompt.grammar_after(ReasoningStart::kUnopened), prompt.grammar);
  EXPECT_EQ(prompt.grammar_after(ReasoningStart::kClosed), prompt.grammar);
  const auto after = prompt.grammar_after(ReasoningStart::kOpen);
  EXPECT_EQ(after->text, "[0-9]");
  EXPECT_NE(after->thought.find("</think>"), std::string::npos);
}

TEST(AnswerPlanTest, TheGrammarOfCallsFollowsThePrompt) {
  const ByteCodec codec;
  Call call = ChatCall(std::string(kTools) + R"(, "tool_choice": "required")");
  Plan(codec, call);
  const auto text = [&](ReasoningStart start) {
    return call.prompts.front().grammar_after(start)->text;
  };
  const auto has = [](const std::string& all, const char* part) {
    return all.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(text(ReasoningStart::kUnopened), "start: thought? rest"));
  EXPECT_TRUE(has(text(ReasoningStart::kOpen), "start: thought rest"));
  EXPECT_FALSE(has(text(ReasoningStart::kClosed), "thought"));
}

TEST(AnswerPlanTest, ADemandedCallWinsOverAnAnswerInJson) {
  const ByteCodec codec;
  const std::string required = std::string(kTools) + R"(, "tool_choice": "required")";
  for (const char* format :
       {R"(, "response_format": {"type": "json_object"})",
        R"(, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}})"}) {
    Call call = ChatCall(required + format);
    const AnswerPlan plan = Plan(codec, call);
    EXPECT_FALSE(plan.tools.need_mark);
    const TextRequest& prompt = call.prompts.front();
    EXPECT_EQ(prompt.grammar, nullptr);
    const std::string text = prompt.grammar_after(ReasoningStart::kClosed)->text;
    EXPECT_EQ(text.find("@answer"), std::string::npos);
  }
  Call other = ChatCall(required + R"(, "regex": "a")");
  EXPECT_FALSE(PlanAnswer({}, codec, std::make_shared<CallIds>(1), other).ok());
}

}  // namespace
}  // namespace tandem::serve::openai
