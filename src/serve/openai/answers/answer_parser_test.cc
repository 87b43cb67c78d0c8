#include "serve/openai/answers/answer_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::serve::openai {
namespace {

// The parts as text: content as it is, R(reasoning), name(arguments).
std::string Shown(const std::vector<AnswerPart>& parts) {
  std::string shown;
  PartKind last = PartKind::kContent;
  for (const AnswerPart& part : parts) {
    const bool goes_on = part.kind == last && part.kind != PartKind::kCall;
    if (!goes_on && last != PartKind::kContent && last != PartKind::kCall) shown += ")";
    if (part.kind == PartKind::kReasoning && !goes_on) shown += "R(";
    if (part.kind == PartKind::kArguments && !goes_on) shown += "(";
    if (part.kind == PartKind::kCall) shown += std::to_string(part.call) + ":";
    shown += part.text;
    last = part.kind;
  }
  return last == PartKind::kContent || last == PartKind::kCall ? shown : shown + ")";
}

AnswerFormat Format(std::string_view tools, std::string_view reasoning = "none") {
  return FindAnswerFormat(tools, reasoning, "");
}

// The answer parsed at once, and cut in two and in three at every place: all must be equal.
std::string Parse(const AnswerFormat& format, const std::string& answer,
                  const CallableTools& tools = {{"add", "now"}, true}) {
  const auto in_pieces = [&](const std::vector<size_t>& cuts) {
    AnswerParser parser(format, tools);
    std::vector<AnswerPart> parts;
    const auto add = [&](std::vector<AnswerPart> more) {
      parts.insert(parts.end(), more.begin(), more.end());
    };
    size_t at = 0;
    for (const size_t cut : cuts) {
      add(parser.Push(std::string_view(answer).substr(at, cut - at)));
      at = cut;
    }
    add(parser.Push(std::string_view(answer).substr(at)));
    add(parser.Flush());
    return Shown(parts);
  };
  const std::string whole = in_pieces({});
  std::vector<size_t> all;
  for (size_t i = 0; i <= answer.size(); ++i) {
    all.push_back(i);
    for (size_t j = i; j <= answer.size(); ++j)
      EXPECT_EQ(in_pieces({i, j}), whole) << i << " " << j;
  }
  EXPECT_EQ(in_pieces(all), whole);
  return whole;
}

TEST(AnswerParserTest, HermesCallsStandBetweenMarks) {
  const AnswerFormat hermes = Format("hermes");
  EXPECT_EQ(Parse(hermes, "Hello <b>you</b>. "), "Hello <b>you</b>. ");
  EXPECT_EQ(Parse(hermes,
                  "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n"
                  "</tool_call>"),
            "0:add({\"x\": 1})");
  EXPECT_EQ(Parse(hermes,
                  "Let me see.\n<tool_call>{\"name\": \"add\", \"arguments\": {}}"
                  "</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": "
                  "\"}\\\"</tool_call>\"}}</tool_call>\n"),
            "Let me see.0:add({})1:now({\"a\": \"}\\\"</tool_call>\"})");
  // An answer that ends with the call's JSON is whole.
  EXPECT_EQ(Parse(hermes, "<tool_call>{\"name\": \"add\", \"arguments\": {}}"), "0:add({})");
}

TEST(AnswerParserTest, MalformedCallsAreText) {
  const AnswerFormat hermes = Format("hermes");
  for (const char* text :
       {"<tool_call>", "<tool_call>add(1)</tool_call>", "<tool_call>{\"name\": \"add\"",
        "<tool_call>{\"name\": \"add\"}</tool_call>", "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>", "<tool_ca", "a <tool_callx",
        "<tool_call>{\"name\": \"add\", \"arguments\": {x}}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {}} more</tool_call>"}) {
    EXPECT_EQ(Parse(hermes, text), text);
  }
}

TEST(AnswerParserTest, MistralCallsAreAnArray) {
  const AnswerFormat mistral = Format("mistral");
  EXPECT_EQ(Parse(mistral,
                  "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"x\": [1]}}, "
                  "{\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghi\"}]"),
            "0:add({\"x\": [1]})1:now({})");
  EXPECT_EQ(Parse(mistral, "[TOOL_CALLS] add"), "[TOOL_CALLS] add");
  EXPECT_EQ(Parse(mistral, "[1] and [TOOL]"), "[1] and [TOOL]");
}

TEST(AnswerParserTest, LlamaCallsMayBeBare) {
  const AnswerFormat llama = Format("llama3");
  const std::string add = "{\"name\": \"add\", \"parameters\": {\"x\": 1}}";
  EXPECT_EQ(Parse(llama, add), "0:add({\"x\": 1})");
  EXPECT_EQ(Parse(llama, "<|python_tag|>" + add), "0:add({\"x\": 1})");
  EXPECT_EQ(Parse(llama, add + "; " + add), "0:add({\"x\": 1})1:add({\"x\": 1})");
  // JSON that names no tool, or is not at the start, is an answer.
  for (const std::string& text :
       {std::string("{\"name\": \"Ada\", \"parameters\": {}}"), std::string("{\"a\": 1} b"),
        "It is " + add, std::string("<|python_tag|>print(1)"), std::string("{")}) {
    EXPECT_EQ(Parse(llama, text), text);
  }
}

TEST(AnswerParserTest, WithoutToolsOrParallelCalls) {
  const std::string call = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(Parse(Format("hermes"), call, {}), call);
  EXPECT_EQ(Parse(Format("none"), call), call);
  EXPECT_EQ(Parse(Format("hermes"), call + call, {{"add"}, false}), "0:add({})");
}

TEST(AnswerParserTest, CallsThatFollowAGrammarComeAsTheyAreWritten) {
  const CallableTools strict{{"add", "now"}, true, /*follow_grammar=*/true};
  const std::string add = R"({"name": "add", "arguments": {"x": [1, {}], "s": "}\"]\\"}})";
  const std::string shown = R"(add({"x": [1, {}], "s": "}\"]\\"}))";
  EXPECT_EQ(Parse(Format("hermes"), "<tool_call>\n" + add + "\n</tool_call>", strict),
            "0:" + shown);
  EXPECT_EQ(Parse(Format("hermes"),
                  "Let me see.\n<tool_call>\n" + add + "\n</tool_call>\n<tool_call>\n" + add +
                      "\n</tool_call>",
                  strict),
            "Let me see.0:" + shown + "1:" + shown);
  EXPECT_EQ(Parse(Format("mistral"), "[TOOL_CALLS][" + add + ", " + add + "]", strict),
            "0:" + shown + "1:" + shown);
  const std::string now = R"({"name": "now", "parameters": {}})";
  EXPECT_EQ(Parse(Format("llama3"), now + "; " + now, strict), "0:now({})1:now({})");
  EXPECT_EQ(Parse(Format("llama3"), "<|python_tag|>" + now, strict), "0:now({})");
  // One that is cut off is shown as far as it came.
  EXPECT_EQ(Parse(Format("llama3"), R"({"name": "now", "parameters": {"a": ")", strict),
            R"(0:now({"a": "))");
  EXPECT_EQ(Parse(Format("llama3"), R"({"name": "now", "par)", strict), "");
  const CallableTools marked{{"now"}, true, true, false, /*need_mark=*/true};
  EXPECT_EQ(Parse(Format("llama3"), now, marked), now);
}

TEST(AnswerParserTest, ReasoningIsApart) {
  AnswerFormat think = Format("hermes", "think");
  EXPECT_EQ(Parse(think, "<think>\nHm.\n\nYes </th\n</think>\n\nIt is."),
            "R(Hm.\n\nYes </th)It is.");
  EXPECT_EQ(Parse(think, "It is <think>."), "It is <think>.");
  EXPECT_EQ(Parse(think, "<think>Hm."), "R(Hm.)");
  EXPECT_EQ(Parse(think, "<think></think>It."), "It.");
  EXPECT_EQ(Parse(think, "<thin"), "<thin");
  EXPECT_EQ(Parse(think,
                  "<think>Hm.</think>\n<tool_call>{\"name\": \"add\", \"arguments\": {}}"
                  "</tool_call>"),
            "R(Hm.)0:add({})");
  think.start = ReasoningStart::kOpen;
  EXPECT_EQ(Parse(think, "Hm.\n</think>\nIt is."), "R(Hm.)It is.");
  think.start = ReasoningStart::kClosed;
  EXPECT_EQ(Parse(think, "It is."), "It is.");
  EXPECT_EQ(Parse(think, "<think>It</think> is."), "<think>It</think> is.");
}

TEST(AnswerParserTest, ArgumentsStayAsTheModelWroteThem) {
  const std::string arguments =
      R"({ "a" : [12345678901234567890123,1e2, 0.10, -0],"b":"\u00e9\/", "c":{"name": 1} })";
  EXPECT_EQ(Parse(Format("hermes"), R"(<tool_call>{"arguments": )" + arguments +
                                        R"(, "name": "a\u0064d"}</tool_call>)"),
            "0:add(" + arguments + ")");
  EXPECT_EQ(Parse(Format("mistral"), R"([TOOL_CALLS][ {"name":"add","id":"x","arguments":)" +
                                         arguments + R"(} , {"name":"now","arguments":{}} ])"),
            "0:add(" + arguments + ")1:now({})");
}

TEST(AnswerParserTest, AStreamedCallIsReadOnce) {
  // Looked at again for each piece, ten million characters take hours.
  AnswerParser parser(Format("hermes"), {{"add"}, true});
  parser.Push(R"(<tool_call>{"name": "add", "arguments": {"x": ")");
  for (int i = 0; i < 1'000'000; ++i) EXPECT_TRUE(parser.Push("abcdefghi\\\"").empty());
  EXPECT_EQ(parser.Push("\"}}</tool_call>").size(), 2u);
}

TEST(AnswerFormatTest, ATemplateShowsItsFormats) {
  const auto found = [](std::string_view source) {
    return FindAnswerFormat("auto", "auto", source);
  };
  EXPECT_EQ(found("<tool_call>{{ x }}</tool_call>").tools->name, "hermes");
  EXPECT_EQ(found("[TOOL_CALLS]").tools->name, "mistral");
  EXPECT_EQ(found("<|start_header_id|>ipython").tools->name, "llama3");
  EXPECT_EQ(found("plain").tools, nullptr);
  EXPECT_EQ(found("plain").reasoning, nullptr);
  EXPECT_EQ(FindAnswerFormat("none", "none", "<tool_call></think>").tools, nullptr);
  EXPECT_EQ(FindAnswerFormat("mistral", "none", "<tool_call>").tools->name, "mistral");
  EXPECT_EQ(found("{% if '</think>' in x %}").reasoning->name, "think");
  EXPECT_EQ(found("{{ 'A<think>\\n' }}").reasoning->name, "think");
}

}  // namespace
}  // namespace tandem::serve::openai
