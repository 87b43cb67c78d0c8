#include "serve/openai/request/messages.h"

#include <gtest/gtest.h>

#include <string>

#include "serve/openai/answers/tools.h"

namespace tandem::serve::openai {
namespace {

Result<TextRequest> Read(const std::string& members) {
  TextRequest text;
  const Result<Json> body = ParseJson("{" + members + "}");
  if (!body.ok()) return body.status();
  const Result<ToolRequest> tools = ReadTools(*body, ToolSpelling::kNested);
  if (!tools.ok()) return tools.status();
  const Status status = ReadChat(*body, tools->for_template, text);
  if (!status.ok()) return status;
  return text;
}

// The messages as the template gets them, or the error.
std::string Messages(const std::string& messages) {
  const Result<TextRequest> text = Read(R"("messages": )" + messages);
  return text.ok() ? *text->messages : text.status().message();
}

TEST(OpenAiMessagesTest, ToolCallsGetTheirArgumentsAsObjects) {
  EXPECT_EQ(Messages(R"([{"role": "assistant", "content": null, "tool_calls": [
          {"id": "a1", "type": "function",
           "function": {"name": "add", "arguments": "{\"x\": [1, 2.5]}"}}]},
          {"role": "tool", "tool_call_id": "a1", "name": "add", "content": "3.5"}])"),
            R"([{"role":"assistant","content":"","tool_calls":[{"id":"a1","type":"function",)"
            R"("function":{"name":"add","arguments":{"x":[1,2.5]}}}]},)"
            R"({"role":"tool","content":"3.5","name":"add","tool_call_id":"a1"}])");
  // What is no object stays as it was sent.
  for (const auto& [sent, read] :
       {std::pair{R"("{\"x\": ")", R"("{\"x\": ")"}, std::pair{R"("")", "{}"},
        std::pair{R"("[1]")", R"("[1]")"}, std::pair{R"({"x":1})", R"({"x":1})"},
        std::pair{"null", "{}"}}) {
    EXPECT_EQ(Messages(std::string(R"([{"role": "assistant", "tool_calls": [{"function":
                  {"name": "f", "arguments": )") +
                       sent + "}}]}]"),
              std::string(R"([{"role":"assistant","content":"","tool_calls":[{"type":"function",)"
                          R"("function":{"name":"f","arguments":)") +
                  read + "}}]}]");
  }
}

TEST(OpenAiMessagesTest, PartsNamesAndReasoningAreKept) {
  EXPECT_EQ(Messages(R"([{"role": "developer", "name": "n",
                          "content": [{"type": "text", "text": "a"}]},
                         {"role": "assistant", "content": "b", "reasoning_content": "c",
                          "tool_calls": [], "refusal": null}])"),
            R"([{"role":"developer","content":[{"type":"text","text":"a"}],"name":"n"},)"
            R"({"role":"assistant","content":"b","reasoning_content":"c"}])");
}

TEST(OpenAiMessagesTest, ErrorsNameTheMember) {
  const auto field = [](const std::string& message) {
    return Read(R"("messages": [)" + message + "]").status().field();
  };
  EXPECT_EQ(field(R"({"role": "robot"})"), "messages[0].role");
  EXPECT_EQ(field(R"({"role": "user", "content": [{"type": "image_url"}]})"),
            "messages[0].content");
  EXPECT_EQ(field(R"({"role": "user"})"), "messages[0].content");
  EXPECT_EQ(field(R"({"role": "user", "content": null})"), "messages[0].content");
  EXPECT_EQ(field(R"({"role": "assistant"})"), "messages[0].content");
  for (const char* empty : {R"("content": null)", R"("content": "")", R"("refusal": "No.")",
                            R"("tool_calls": [{"function": {"name": "f"}}])"}) {
    EXPECT_EQ(field(std::string(R"({"role": "assistant", )") + empty + "}"), "") << empty;
  }
  EXPECT_EQ(field(R"({"role": "user", "content": "", "name": 1})"), "messages[0].name");
  EXPECT_EQ(field(R"({"role": "user", "content": "", "tool_calls": [{}]})"),
            "messages[0].tool_calls");
  EXPECT_EQ(field(R"({"role": "assistant", "tool_calls": [{}]})"), "messages[0].tool_calls[0]");
  EXPECT_EQ(field(R"({"role": "assistant", "tool_calls": [{"function": {}}]})"),
            "messages[0].tool_calls[0].function.name");
  EXPECT_EQ(field(R"({"role": "assistant", "tool_calls": {}})"), "messages[0].tool_calls");
}

TEST(OpenAiMessagesTest, ToolsAndVariablesReachTheTemplate) {
  const std::string user = R"("messages": [{"role": "user", "content": "Hi"}])";
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}])";
  EXPECT_EQ(Read(user)->chat.variables, "{}");
  EXPECT_EQ(Read(user + R"(, "chat_template_kwargs": {"a": true}, )" + tools)->chat.variables,
            R"({"a":true,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]})");
  EXPECT_EQ(Read(user + R"(, "tool_choice": "none", )" + tools)->chat.variables, "{}");
  EXPECT_EQ(Read(user + R"(, "chat_template_kwargs": {"tools": []})").status().field(),
            "chat_template_kwargs");
  EXPECT_EQ(Read(user + R"(, "tools": [{"type": "x"}])").status().field(), "tools[0].type");
  EXPECT_EQ(Read(user + R"(, "tools": [{"type": "function"}])").status().field(),
            "tools[0].function.name");
}

TEST(OpenAiMessagesTest, TheLastMessageCanBeContinued) {
  const std::string talk = R"("messages": [{"role": "assistant", "content": "Once"}])";
  EXPECT_TRUE(Read(talk)->chat.add_generation_prompt);
  EXPECT_FALSE(Read(talk + R"(, "add_generation_prompt": false)")->chat.add_generation_prompt);
  const Result<TextRequest> continued = Read(talk + R"(, "continue_final_message": true)");
  EXPECT_FALSE(continued->chat.add_generation_prompt);
  EXPECT_EQ(continued->chat.continued, "Once");
  EXPECT_TRUE(continued->continues_prompt);
  EXPECT_EQ(Read(talk + R"(, "continue_final_message": true, "add_generation_prompt": true)")
                .status()
                .field(),
            "continue_final_message");
  EXPECT_EQ(
      Read(
          R"("messages": [{"role": "assistant", "content": null}], "continue_final_message": true)")
          .status()
          .field(),
      "continue_final_message");
}

}  // namespace
}  // namespace tandem::serve::openai
