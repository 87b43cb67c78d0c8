#include "serve/openai/answers/tools.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kTwo = R"("tools": [
  {"type": "function", "function": {"name": "add"}},
  {"type": "function", "function": {"name": "now"}}])";

Result<ToolRequest> Read(std::string_view members, ToolSpelling spelling = ToolSpelling::kNested) {
  return ReadTools(*ParseJson(fmt::format("{{{}}}", members)), spelling);
}
Result<ToolRequest> Choose(std::string_view choice) {
  return Read(fmt::format(R"({}, "tool_choice": {})", kTwo, choice));
}
std::vector<std::string> Names(const Result<ToolRequest>& request) {
  return request.ok() ? request->callable().names : std::vector{request.status().message()};
}
using List = std::vector<std::string>;

TEST(OpenAiToolsTest, WithoutAChoiceTheModelDecides) {
  const Result<ToolRequest> tools = Read(kTwo);
  EXPECT_EQ(tools->choice, ToolChoice::kAuto);
  EXPECT_EQ(Names(tools), (List{"add", "now"}));
  EXPECT_TRUE(tools->callable().parallel);
  EXPECT_FALSE(tools->follows_grammar());
  EXPECT_FALSE(tools->for_template.is_null());
  EXPECT_FALSE(Read(fmt::format(R"({}, "parallel_tool_calls": false)", kTwo))->callable().parallel);
  EXPECT_EQ(Names(Choose(R"("auto")")), (List{"add", "now"}));
  EXPECT_TRUE(Names(Choose(R"("none")")).empty());
  EXPECT_TRUE(Choose(R"("none")")->for_template.is_null());
  EXPECT_TRUE(Names(Read(R"("tool_choice": "auto")")).empty());
}

TEST(OpenAiToolsTest, CallsThatMustBeMadeFollowAGrammar) {
  EXPECT_TRUE(Choose(R"("required")")->must_call());
  EXPECT_TRUE(Choose(R"("required")")->follows_grammar());
  EXPECT_FALSE(Choose(R"("required")")->callable().is_named);
  for (const char* named : {R"({"type": "function", "function": {"name": "now"}})",
                            R"({"type": "function", "name": "now"})"}) {
    const Result<ToolRequest> tools = Choose(named);
    EXPECT_EQ(Names(tools), (List{"now"}));
    EXPECT_TRUE(tools->follows_grammar() && tools->callable().is_named);
    EXPECT_EQ(tools->for_template.AsArray()->size(), 2u);
  }
}

TEST(OpenAiToolsTest, SomeFunctionsMayBeAllowed) {
  for (
      const char* allowed :
      {R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]})",
       R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools":
            [{"type": "function", "function": {"name": "add"}}]}})"}) {
    const Result<ToolRequest> tools = Choose(allowed);
    EXPECT_EQ(Names(tools), (List{"add"}));
    EXPECT_TRUE(tools->follows_grammar());
    EXPECT_FALSE(tools->must_call());
  }
  const Result<ToolRequest> all = Choose(
      R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"},
          {"type": "function", "name": "now"}]})");
  EXPECT_FALSE(all->follows_grammar());
  EXPECT_EQ(Choose(R"({"type": "allowed_tools", "mode": "none", "tools": []})").status().field(),
            "tool_choice.mode");
  EXPECT_EQ(Choose(R"({"type": "allowed_tools", "mode": "auto", "tools": []})").status().field(),
            "tool_choice.tools");
}

TEST(OpenAiToolsTest, StrictFunctionsHaveASchema) {
  const auto strict = [](std::string_view parameters) {
    return Read(fmt::format(R"("tools": [{{"type": "function", "function":
                                {{"name": "f", "strict": true{}}}}}])",
                            parameters));
  };
  EXPECT_TRUE(strict("")->follows_grammar());
  EXPECT_EQ(strict("")->tools[0].schema,
            R"({"type":"object","properties":{},"additionalProperties":false})");
  EXPECT_EQ(strict(R"(, "parameters": {"type": "object"})")->tools[0].schema,
            R"({"type":"object"})");
  for (const char* bad : {R"(, "parameters": {})", R"(, "parameters": {"type": "string"})",
                          R"(, "parameters": [])", R"(, "parameters": {"type": ["object"]})"}) {
    EXPECT_EQ(strict(bad).status().field(), "tools[0].function.parameters") << bad;
  }
  EXPECT_EQ(Read(R"("tools": [{"type": "function", "function": {"name": "f", "strict": 1}}])")
                .status()
                .field(),
            "tools[0].function.strict");
}

TEST(OpenAiToolsTest, ErrorsNameTheChoice) {
  for (const char* choice : {R"("sometimes")", R"({"type": "function"})", "1", R"({"name": "add"})",
                             R"({"type": "function", "function": {"name": "sub"}})",
                             R"({"type": "custom", "name": "add"})"}) {
    EXPECT_EQ(Choose(choice).status().field(), "tool_choice") << choice;
  }
  EXPECT_EQ(Read(R"("tool_choice": "required")").status().message(), "tool_choice: needs tools");
  EXPECT_EQ(Read(R"("tools": [], "tool_choice": "required")").status().field(), "tool_choice");
}

TEST(OpenAiToolsTest, ResponsesWriteTheFunctionAsTheTool) {
  const Result<ToolRequest> tools = Read(
      R"("tools": [{"type": "function", "name": "f", "description": "d", "strict": true,
                    "parameters": {"type": "object"}}])",
      ToolSpelling::kFlat);
  ASSERT_TRUE(tools.ok()) << tools.status().message();
  EXPECT_EQ(tools->tools[0].field, "tools[0].parameters");
  EXPECT_EQ(tools->for_template.Dump(),
            R"([{"type":"function","function":{"name":"f","description":"d","strict":true,)"
            R"("parameters":{"type":"object"}}}])");
  EXPECT_EQ(Read(R"("tools": [{"type": "web_search"}])", ToolSpelling::kFlat).status().message(),
            "tools[0].type: \"web_search\" is not supported; it must be \"function\", because this "
            "server runs no tools of its own");
  EXPECT_EQ(Read(R"("tools": [{"type": "function"}])", ToolSpelling::kFlat).status().field(),
            "tools[0].name");
}

}  // namespace
}  // namespace tandem::serve::openai
