// Grammars of calls, compiled for a real tokenizer: what they admit, and that the reader of answers
// finds in it what was meant.
#include "serve/openai/answers/tool_grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/openai/answers/answer_parser.h"
#include "serve/openai/answers/reasoning_grammar.h"
#include "text/testing/tokenizers.h"

namespace tandem::serve::openai {
namespace {

constexpr int64_t kManyRows = 1 << 20;

constexpr std::string_view kTools = R"("tools": [
  {"type": "function", "function": {"name": "add", "strict": true, "parameters":
    {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"],
     "additionalProperties": false, "$defs": {"n": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "now"}}])";

class ToolGrammarTest : public testing::Test {
 protected:
  static ToolRequest Tools(std::string_view choice, std::string_view tools = kTools) {
    return ReadTools(*ParseJson(fmt::format("{{{}, {}}}", tools, choice)), ToolSpelling::kNested)
        .value();
  }

  std::shared_ptr<const OutputGrammar> Grammar(std::string_view choice) {
    tools_ = Tools(choice);
    EXPECT_TRUE(tools_.follows_grammar());
    return ToolGrammar(tools_, format_, answer_.get(), *codec_);
  }

  bool Admits(const OutputGrammar& grammar, std::string_view text) {
    const std::vector<int32_t> ends = codec_->end_ids();
    const auto start = codec_->FollowGrammar(grammar, ends);
    EXPECT_TRUE(start.ok()) << start.status().message() << "\n" << grammar.text;
    if (!start.ok()) return false;
    const auto constraint = (*start)->Clone();
    const auto has = [&](int32_t token) {
      std::vector<uint32_t> mask((static_cast<size_t>(codec_->vocab_size()) + 31) / 32, ~0u);
      constraint->FillMask({}, mask);
      return (mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
    };
    const std::vector<int32_t> tokens = codec_->Encode(text, false).value();
    for (const int32_t token : tokens) {
      if (!has(token)) return false;
      constraint->Commit(&token, 1);
    }
    return has(ends.front());
  }

  // The answer's parts as text: content, R(reasoning), name(arguments).
  std::string Read(std::string_view text) {
    CallableTools callable = tools_.callable();
    callable.need_mark = answer_ != nullptr;
    AnswerParser parser(format_, callable);
    std::string content, reasoning, calls;
    const auto add = [&](const std::vector<AnswerPart>& parts) {
      for (const AnswerPart& part : parts) {
        if (part.kind == PartKind::kContent) content += part.text;
        if (part.kind == PartKind::kReasoning) reasoning += part.text;
        if (part.kind == PartKind::kCall) calls += fmt::format("|{}:{}", part.call, part.text);
        if (part.kind == PartKind::kArguments) calls += part.text;
      }
    };
    for (const char c : text) add(parser.Push(std::string_view(&c, 1)));
    add(parser.Flush());
    return (reasoning.empty() ? "" : "R(" + reasoning + ")") + content + calls;
  }

  void Expect(std::string_view choice, const std::vector<std::pair<std::string, std::string>>& yes,
              const std::vector<std::string>& no) {
    const auto grammar = Grammar(choice);
    for (const auto& [text, read] : yes) {
      EXPECT_TRUE(Admits(*grammar, text)) << text << "\n" << grammar->text;
      EXPECT_EQ(Read(text), read);
    }
    for (const std::string& text : no) EXPECT_FALSE(Admits(*grammar, text)) << text;
  }

  void SetFormat(std::string_view tools, std::string_view reasoning = "none") {
    format_ = FindAnswerFormat(tools, reasoning, "");
  }

  const std::unique_ptr<TextCodec> codec_ =
      LoadTextCodec(TestTokenizerDir("byte_level"), kManyRows).value();
  AnswerFormat format_;
  ToolRequest tools_;
  std::shared_ptr<const OutputGrammar> answer_;
};

constexpr std::string_view kRequired = R"("tool_choice": "required")";
constexpr std::string_view kAuto = R"("tool_choice": "auto")";

std::string Hermes(std::string_view call) {
  return fmt::format("<tool_call>\n{}\n</tool_call>", call);
}

const std::string kAdd = R"({"name": "add", "arguments": {"x": 12}})";
const std::string kNow = R"({"name": "now", "arguments": {"any": [1, "}"], "b": {}}})";

TEST_F(ToolGrammarTest, RequiredCallsFollowSchemasInTheFormOfHermes) {
  SetFormat("hermes");
  Expect(
      kRequired,
      {{Hermes(kAdd), R"(|0:add{"x": 12})"},
       {Hermes(kNow), R"(|0:now{"any": [1, "}"], "b": {}})"},
       {Hermes(kAdd) + "\n" + Hermes(kNow), R"(|0:add{"x": 12}|1:now{"any": [1, "}"], "b": {}})"}},
      {"", "Hello", "Hello " + Hermes(kAdd), kAdd, Hermes(R"({"name": "sub", "arguments": {}})"),
       Hermes(R"({"name": "add", "arguments": {"x": "12"}})"),
       Hermes(R"({"name": "add", "arguments": {}})"), Hermes(R"({"name": "now", "arguments": []})"),
       "<tool_call>\n" + kAdd, Hermes(kAdd) + " and more"});
}

TEST_F(ToolGrammarTest, DemandedCallsFitSchemasThatAreNotStrict) {
  SetFormat("hermes");
  constexpr std::string_view kLoose = R"("tools": [
    {"type": "function", "function": {"name": "add", "parameters": {"properties":
      {"x": {"type": "integer", "if": true}}, "required": ["x"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "odd", "parameters":
      {"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}}}},
    {"type": "function", "function": {"name": "say", "parameters": {"type": "string"}}}])";
  tools_ = Tools(kRequired, kLoose);
  const auto whole = ToolGrammar(tools_, format_, nullptr, *codec_);
  ASSERT_FALSE(codec_->FollowGrammar(*whole, codec_->end_ids()).ok());
  // Only the schema that cannot be followed is dropped.
  ASSERT_TRUE(whole->looser);
  const auto looser = whole->looser();
  EXPECT_TRUE(Admits(*looser, Hermes(kAdd)));
  EXPECT_FALSE(Admits(*looser, Hermes(R"({"name": "add", "arguments": {"x": "12"}})")));
  EXPECT_FALSE(Admits(*looser, Hermes(R"({"name": "add", "arguments": {}})")));
  EXPECT_FALSE(Admits(*looser, Hermes(R"({"name": "add", "arguments": 12})")));
  EXPECT_TRUE(Admits(*looser, Hermes(R"({"name": "odd", "arguments": {"y": [1]}})")));
  EXPECT_TRUE(Admits(*looser, Hermes(R"({"name": "say", "arguments": {"y": [1]}})")));
  // What cannot be followed together is any object.
  EXPECT_FALSE(looser->looser()->looser);
  // Where a call is only allowed, the schema of a strict function alone is followed.
  tools_ = Tools(kAuto, kLoose);
  EXPECT_FALSE(tools_.follows_grammar());
}

TEST_F(ToolGrammarTest, OneCallAndANamedOne) {
  SetFormat("hermes");
  Expect(R"("tool_choice": "required", "parallel_tool_calls": false)",
         {{Hermes(kAdd), R"(|0:add{"x": 12})"}}, {Hermes(kAdd) + "\n" + Hermes(kAdd)});
  Expect(R"("tool_choice": {"type": "function", "function": {"name": "now"}})",
         {{Hermes(kNow), R"(|0:now{"any": [1, "}"], "b": {}})"}}, {Hermes(kAdd)});
}

TEST_F(ToolGrammarTest, StrictCallsMayBeMadeAfterText) {
  SetFormat("hermes");
  Expect(kAuto,
         {{"", ""},
          {"Hello <b>you</b>.\n", "Hello <b>you</b>.\n"},
          {"a <tool_cal", "a <tool_cal"},
          {Hermes(kAdd), R"(|0:add{"x": 12})"},
          {"Let me see.\n" + Hermes(kAdd) + "\n" + Hermes(kAdd),
           R"(Let me see.|0:add{"x": 12}|1:add{"x": 12})"}},
         {"a <tool_call> b", "a " + Hermes(R"({"name": "add", "arguments": {"x": "12"}})"),
          Hermes(kAdd) + " and more"});
}

TEST_F(ToolGrammarTest, MistralsCallsAreAnArray) {
  SetFormat("mistral");
  Expect(kRequired,
         {{"[TOOL_CALLS][" + kAdd + "]", R"(|0:add{"x": 12})"},
          {"[TOOL_CALLS][" + kAdd + ", " + kAdd + "]", R"(|0:add{"x": 12}|1:add{"x": 12})"}},
         {"[" + kAdd + "]", "[TOOL_CALLS]" + kAdd, "[TOOL_CALLS][]"});
  Expect(kAuto,
         {{"[1] and [TOOL]", "[1] and [TOOL]"},
          {"See: [TOOL_CALLS][" + kAdd + "]", R"(See:|0:add{"x": 12})"}},
         {"See: [TOOL_CALLS] none"});
}

TEST_F(ToolGrammarTest, LlamasCallsMayBeBare) {
  SetFormat("llama3");
  const std::string add = R"({"name": "add", "parameters": {"x": 12}})";
  Expect(kRequired,
         {{add, R"(|0:add{"x": 12})"},
          {"<|python_tag|>" + add + "; " + add, R"(|0:add{"x": 12}|1:add{"x": 12})"}},
         {"", kAdd, "Hello"});
  Expect(kAuto,
         {{"Hello {you}", "Hello {you}"},
          {add, R"(|0:add{"x": 12})"},
          {"Hm. <|python_tag|>" + add, R"(Hm.|0:add{"x": 12})"}},
         {"{you}", " {you}", R"({"name": "add", "parameters": {}})", "a <|python_tag|> b"});
}

TEST_F(ToolGrammarTest, ReasoningComesBeforeCalls) {
  SetFormat("hermes", "think");
  const std::string thought = "<think>\nShall I <tool_call>?\n</think>\n\n";
  Expect(kRequired,
         {{Hermes(kAdd), R"(|0:add{"x": 12})"},
          {thought + Hermes(kAdd), R"(R(Shall I <tool_call>?)|0:add{"x": 12})"}},
         {"<think>Hm.", thought, thought + "Hello", "Hello"});
  Expect(kAuto,
         {{thought + "Hello", "R(Shall I <tool_call>?)Hello"},
          {thought + Hermes(kAdd), R"(R(Shall I <tool_call>?)|0:add{"x": 12})"},
          {"Hello <think>", "Hello <think>"}},
         {thought + "<tool_call> no"});
  format_.start = ReasoningStart::kOpen;
  Expect(kRequired, {{"Hm.</think>" + Hermes(kAdd), R"(R(Hm.)|0:add{"x": 12})"}},
         {Hermes(kAdd), "Hello"});
  Expect(kAuto, {{"Hm. <tool_call></think>Hello", "R(Hm. <tool_call>)Hello"}}, {"Hello"});
}

TEST_F(ToolGrammarTest, NoReasoningComesAfterAPromptThatHasClosedIt) {
  SetFormat("hermes", "think");
  format_.start = ReasoningStart::kClosed;
  Expect(kRequired, {{Hermes(kAdd), R"(|0:add{"x": 12})"}}, {"<think>Hm.</think>" + Hermes(kAdd)});
  Expect(kAuto, {{"<think> is", "<think> is"}}, {});
}

TEST_F(ToolGrammarTest, AnyGrammarMayFollowReasoning) {
  SetFormat("none", "think");
  format_.start = ReasoningStart::kOpen;
  using enum GrammarKind;
  const struct {
    GrammarKind kind;
    std::string text, answer;
  } cases[] = {
      {kJsonObject, "", R"({"a": [1]})"},
      {kJsonSchema, R"({"const": {"a": 1}})", R"({"a": 1})"},
      {kLooseJsonSchema, R"({"type": "integer", "if": true})", "12"},
      {kRegex, "[a-c]+|x/y", "x/y"},
      {kChoice, R"(["yes \"", "no"])", "yes \""},
      {kLark, "start: A B\nA: \"a\"\nB: \"b\"", "ab"},
      {kLark, "root ::= \"a\" \"b\"", "ab"},
      {kGuidance,
       R"({"grammars": [{"name": "x", "lark_grammar": "start: @y"},)"
       R"({"name": "y", "lark_grammar": "start: \"ab\""}]})",
       "ab"},
      {kGuidance, R"({"grammars": [{"lark_grammar": "start: \"ab\""}]})", "ab"},
  };
  for (const auto& [kind, text, answer] : cases) {
    const OutputGrammar grammar{.kind = kind, .text = text, .field = "x"};
    EXPECT_TRUE(Admits(grammar, answer)) << text;
    const auto after = AfterReasoning(grammar, *format_.reasoning, *codec_);
    EXPECT_TRUE(Admits(*after, "Hm, " + answer + "?\n</think>\n\n" + answer)) << text;
    EXPECT_TRUE(Admits(*after, "</think>" + answer)) << text;
    EXPECT_FALSE(Admits(*after, answer)) << text;
    EXPECT_FALSE(Admits(*after, "Hm.</think>" + answer + ";")) << text;
    EXPECT_EQ(Read("Hm.\n</think>\n\n" + answer), "R(Hm.)" + answer);
  }
}

TEST_F(ToolGrammarTest, AnAnswerInJsonMayStandInPlaceOfCalls) {
  answer_ = std::make_shared<OutputGrammar>(OutputGrammar{.kind = GrammarKind::kJsonSchema,
                                                          .text = R"({"enum": [{"a": 1}]})",
                                                          .field = "response_format"});
  for (const std::string_view name : {"hermes", "llama3"}) {
    SetFormat(name);
    const bool is_llama = name == "llama3";
    const std::string call =
        is_llama ? R"(<|python_tag|>{"name": "add", "parameters": {"x": 12}})" : Hermes(kAdd);
    Expect(kAuto, {{R"({"a": 1})", R"({"a": 1})"}, {call, R"(|0:add{"x": 12})"}},
           {"Hello", R"({"a": 2})", R"({"name": "add", "parameters": {"x": 12}})"});
  }
}

// As where a model's marks are control tokens: text that spells one is only text.
TEST_F(ToolGrammarTest, MarksThatAreSpecialTokensAreThoseTokens) {
  constexpr std::string_view kMark = "<|begin|>";
  ASSERT_TRUE(codec_->SpecialToken(kMark));
  ToolFormat format = *FindAnswerFormat("hermes", "none", "").tools;
  format.begin = kMark;
  format.end = "";
  format.open = "";
  format.between = " <|begin|>";
  format.close = "";
  format_.tools = &format;
  const std::string call = "<|begin|>" + kAdd;
  Expect(kRequired,
         {{call, R"(|0:add{"x": 12})"}, {call + " " + call, R"(|0:add{"x": 12}|1:add{"x": 12})"}},
         {kAdd, "Hello " + call});
  Expect(kAuto, {{"Hello", "Hello"}, {"Hello " + call, R"(Hello|0:add{"x": 12})"}},
         {"Hello <|begin|>"});
  for (const std::string_view end : {"<|eot|>", "</think>"}) {
    const ReasoningFormat thinking{.name = "x", .begin = "<|begin|>", .end = end};
    SetFormat("hermes");
    format_.reasoning = &thinking;
    const std::string thought = fmt::format("<|begin|>Hm.{}\n", end);
    Expect(kRequired,
           {{thought + Hermes(kAdd), R"(R(Hm.)|0:add{"x": 12})"},
            {Hermes(kAdd), R"(|0:add{"x": 12})"}},
           {"<|begin|>Hm." + Hermes(kAdd)});
  }
}

}  // namespace
}  // namespace tandem::serve::openai
