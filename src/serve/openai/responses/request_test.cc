#include "serve/openai/responses/request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/openai/responses/input.h"

namespace tandem::serve::openai {
namespace {

Result<ResponsesCall> Read(std::string_view members) {
  return ParseResponses(
      fmt::format(R"({{"input": "Hi"{}{}}})", members.empty() ? "" : ", ", members));
}
std::string Messages(std::string_view input, std::optional<std::string> instructions = {}) {
  const Json items = *ParseJson(input);
  const Result<std::string> messages = ReadInput(&items, instructions);
  return messages.ok() ? *messages : messages.status().message();
}

TEST(ResponsesRequestTest, AStringIsAMessageOfTheUser) {
  EXPECT_EQ(Messages(R"("Hi")"), R"([{"role":"user","content":"Hi"}])");
  EXPECT_EQ(Messages(R"("Hi")", "Be brief."),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])");
}

TEST(ResponsesRequestTest, ItemsAreMessagesCallsAndTheirOutputs) {
  EXPECT_EQ(Messages(R"([
      {"role": "developer", "content": "d"},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
      {"type": "reasoning", "id": "rs_1", "summary": []},
      {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
       "content": [{"type": "output_text", "text": "b", "annotations": []}]},
      {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"x\": 1}"},
      {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{"},
      {"type": "function_call_output", "call_id": "c1", "output": "1"},
      {"type": "function_call_output", "call_id": "c2",
       "output": [{"type": "input_text", "text": "noon"}]}])"),
            R"([{"role":"developer","content":"d"},)"
            R"({"role":"user","content":[{"type":"text","text":"a"}]},)"
            R"({"role":"assistant","content":[{"type":"text","text":"b"}],"tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"add","arguments":{"x":1}}},)"
            R"({"id":"c2","type":"function","function":{"name":"now","arguments":"{"}}]},)"
            R"({"role":"tool","content":"1","tool_call_id":"c1"},)"
            R"({"role":"tool","content":[{"type":"text","text":"noon"}],"tool_call_id":"c2"}])");
}

TEST(ResponsesRequestTest, ErrorsNameTheItem) {
  const auto field = [](std::string_view item) {
    const Json items = *ParseJson(fmt::format("[{}]", item));
    return ReadInput(&items, {}).status().field();
  };
  EXPECT_EQ(field("1"), "input[0]");
  EXPECT_EQ(field(R"({"type": 1})"), "input[0]");
  EXPECT_EQ(field("{}"), "input[0].content");
  EXPECT_EQ(field(R"({"content": "a"})"), "input[0].role");
  EXPECT_EQ(field(R"({"role": "robot", "content": "a"})"), "input[0].role");
  EXPECT_EQ(field(R"({"role": "user", "content": [{"type": "input_image"}]})"), "input[0].content");
  EXPECT_EQ(field(R"({"type": "item_reference", "id": "x"})"), "input[0].type");
  EXPECT_EQ(field(R"({"type": "web_search_call"})"), "input[0].type");
  EXPECT_EQ(field(R"({"type": "function_call", "name": "f", "arguments": ""})"),
            "input[0].call_id");
  EXPECT_EQ(field(R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}})"),
            "input[0].arguments");
  EXPECT_EQ(field(R"({"type": "function_call_output", "call_id": "c"})"), "input[0].output");
  EXPECT_EQ(Messages("[]"), "input: must not be empty");
  EXPECT_EQ(ReadInput(nullptr, {}).status().message(), "input: is required");
}

TEST(ResponsesRequestTest, OptionsAreThoseOfAChat) {
  const Result<ResponsesCall> read = Read(
      R"("model": "m", "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9, "stream": true,
         "include": ["message.output_text.logprobs"], "top_logprobs": 3, "store": false,
         "metadata": {"a": "b"}, "user": "u", "truncation": "disabled", "instructions": "x",
         "text": {"format": {"type": "json_schema", "name": "n", "strict": true,
                             "schema": {"type": "object"}}},
         "tools": [{"type": "function", "name": "f"}], "tool_choice": "required")");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const TextRequest& text = read->call.prompts.front();
  EXPECT_EQ(read->call.model, "m");
  EXPECT_EQ(text.max_tokens, 5);
  EXPECT_EQ(text.names.max_tokens, "max_output_tokens");
  EXPECT_EQ(text.sampling.temperature, 0.5);
  EXPECT_EQ(text.num_top_logprobs, 3);
  EXPECT_TRUE(read->call.stream && read->call.logprobs && read->call.ignored.empty());
  EXPECT_EQ(text.grammar->field, "text.format.schema");
  EXPECT_EQ(text.grammar->kind, GrammarKind::kJsonSchema);
  EXPECT_TRUE(read->call.tools.must_call());
  EXPECT_TRUE(Read("")->call.prompts.front().stream);
  EXPECT_FALSE(Read("")->call.stream);
}

TEST(ResponsesRequestTest, WhatHasNoEffectIsNamed) {
  const Result<ResponsesCall> read =
      Read(R"("reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "max_tool_calls": 3,
              "include": ["reasoning.encrypted_content"], "n": 2, "background": false)");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->call.ignored, (std::vector<std::string>{"include.reasoning.encrypted_content",
                                                          "text.verbosity", "reasoning", "n"}));
}

TEST(ResponsesRequestTest, WhatWouldChangeTheAnswerIsRefusedByName) {
  for (const char* member :
       {R"("previous_response_id": "resp_1")", R"("conversation": "c")", R"("prompt": {"id": "p"})",
        R"("background": true)", R"("store": true)", R"("truncation": "auto")",
        R"("top_logprobs": 21)", R"("include": "x")", R"("text": "x")", R"("instructions": [])",
        R"("max_output_tokens": "x")", R"("tool_choice": {"type": "web_search"})"}) {
    const std::string name(member + 1, std::string_view(member + 1).find('"'));
    EXPECT_EQ(Read(member).status().field(), name) << member;
  }
  EXPECT_EQ(Read(R"("tools": [{"type": "file_search"}])").status().field(), "tools[0].type");
  EXPECT_EQ(Read(R"("text": {"format": {"type": "yaml"}})").status().field(), "text.format.type");
  EXPECT_EQ(Read(R"("text": {"format": {"type": "json_schema", "strict": true}})").status().field(),
            "text.format.schema");
}

}  // namespace
}  // namespace tandem::serve::openai
