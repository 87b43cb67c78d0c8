#include "serve/openai/request/constraint_fields.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::serve::openai {
namespace {

struct Read {
  std::shared_ptr<const OutputGrammar> grammar;
  Status status;
  std::vector<std::string> ignored;
};

Read ReadBody(std::string_view body) {
  const Json json = ParseJson(body).value();
  FieldReader fields(json);
  Read read;
  read.grammar = ReadGrammar(fields, read.ignored);
  read.status = fields.status();
  return read;
}

void ExpectGrammar(std::string_view body, GrammarKind kind, std::string_view text,
                   std::string_view field) {
  const Read read = ReadBody(body);
  ASSERT_TRUE(read.status.ok()) << body << ": " << read.status.message();
  ASSERT_NE(read.grammar, nullptr) << body;
  EXPECT_EQ(read.grammar->kind, kind) << body;
  EXPECT_EQ(read.grammar->text, text) << body;
  EXPECT_EQ(read.grammar->field, field) << body;
}

TEST(ConstraintFields, ReadsEverySpelling) {
  using enum GrammarKind;
  const std::string schema = R"({"type":"object","required":["b","a"]})";
  const std::string format = "{\"response_format\":";
  ExpectGrammar(format + R"({"type":"json_object"}})", kJsonObject, "", "response_format");
  ExpectGrammar(format + R"({"type":"json_object","schema":)" + schema + "}}", kJsonSchema, schema,
                "response_format.schema");
  const std::string wrapped =
      R"({"type":"json_schema","json_schema":{"name":"x","schema":)" + schema;
  ExpectGrammar(format + wrapped + R"(,"strict":true}}})", kJsonSchema, schema,
                "response_format.json_schema.schema");
  for (const char* strict : {"", R"(,"strict":false)", R"(,"strict":null)"}) {
    ExpectGrammar(format + wrapped + strict + "}}}", kLooseJsonSchema, schema,
                  "response_format.json_schema.schema");
  }
  ExpectGrammar(format + R"({"type":"json_schema","json_schema":{"name":"x"}}})", kJsonObject, "",
                "response_format.json_schema");
  ExpectGrammar(format + R"({"type":"json","schema":)" + schema + "}}", kJsonSchema, schema,
                "response_format.schema");
  ExpectGrammar(format + R"({"type":"regex","regex":"a+"}})", kRegex, "a+",
                "response_format.regex");
  ExpectGrammar(format + R"({"type":"choice","choice":["a","b"]}})", kChoice, R"(["a","b"])",
                "response_format.choice");
  ExpectGrammar(format + R"({"type":"lark_grammar","lark_grammar":"start: A"}})", kLark, "start: A",
                "response_format.lark_grammar");
  ExpectGrammar(format + R"({"type":"ebnf","ebnf":"start: A"}})", kLark, "start: A",
                "response_format.ebnf");
  const std::string grammars = R"({"grammars":[{"lark_grammar":"start: A"}]})";
  ExpectGrammar(format + R"({"type":"llguidance","grammar":)" + grammars + "}}", kGuidance,
                grammars, "response_format.grammar");
  ExpectGrammar(R"({"guided_json":)" + schema + "}", kJsonSchema, schema, "guided_json");
  ExpectGrammar(R"({"guided_json":"{\"type\":\"null\"}"})", kJsonSchema, R"({"type":"null"})",
                "guided_json");
  ExpectGrammar(R"({"guided_regex":"a"})", kRegex, "a", "guided_regex");
  ExpectGrammar(R"({"guided_choice":["x"]})", kChoice, R"(["x"])", "guided_choice");
  ExpectGrammar(R"({"guided_grammar":"start: A"})", kLark, "start: A", "guided_grammar");
  ExpectGrammar(R"({"guided_json_object":true})", kJsonObject, "", "guided_json_object");
  ExpectGrammar(R"({"structured_outputs":{"json":)" + schema + "}}", kJsonSchema, schema,
                "structured_outputs.json");
  ExpectGrammar(R"({"structured_outputs":{"regex":"a","json":null}})", kRegex, "a",
                "structured_outputs.regex");
  ExpectGrammar(R"({"structured_outputs":{"choice":["a"]}})", kChoice, R"(["a"])",
                "structured_outputs.choice");
  ExpectGrammar(R"({"structured_outputs":{"grammar":"start: A"}})", kLark, "start: A",
                "structured_outputs.grammar");
  ExpectGrammar(R"({"structured_outputs":{"json_object":true}})", kJsonObject, "",
                "structured_outputs.json_object");
  ExpectGrammar(R"({"regex":"a"})", kRegex, "a", "regex");
  ExpectGrammar(R"({"choice":["a"]})", kChoice, R"(["a"])", "choice");
  ExpectGrammar(R"({"lark_grammar":"start: A"})", kLark, "start: A", "lark_grammar");
  ExpectGrammar(R"({"llg_grammar":)" + grammars + "}", kGuidance, grammars, "llg_grammar");
}

TEST(ConstraintFields, AnyAnswerIsTheDefault) {
  for (const char* body :
       {"{}", R"({"response_format":null})", R"({"response_format":{"type":"text"}})",
        R"({"guided_json":null,"guided_regex":null})", R"({"guided_json_object":false})",
        R"({"structured_outputs":{"json_object":false}})"}) {
    const Read read = ReadBody(body);
    EXPECT_TRUE(read.status.ok()) << body << ": " << read.status.message();
    EXPECT_EQ(read.grammar, nullptr) << body;
  }
}

TEST(ConstraintFields, OptionsOfStructuredOutputsActOrAreNamed) {
  const std::string compact = R"("x-guidance":{"whitespace_flexible":false})";
  for (const auto& [outputs, schema] : {
           std::pair(R"("json":{"const":1})", "{" + compact + R"(,"const":1})"),
           std::pair(R"("json":" {} ")", " {" + compact + "} "),
           std::pair(R"("json_object":true)", "{" + compact + R"(,"type":"object"})"),
       }) {
    const std::string before = std::string(R"({"structured_outputs":{)") + outputs;
    const Read read = ReadBody(before + R"(,"disable_any_whitespace":true}})");
    ASSERT_NE(read.grammar, nullptr) << read.status.message();
    EXPECT_EQ(read.grammar->kind, GrammarKind::kJsonSchema);
    EXPECT_EQ(read.grammar->text, schema);
  }
  const Read read = ReadBody(
      R"({"structured_outputs":{"regex":"a","disable_any_whitespace":false,"backend":"x",)"
      R"("disable_fallback":true,"whitespace_pattern":null,"disable_additional_properties":false}})");
  ASSERT_NE(read.grammar, nullptr) << read.status.message();
  EXPECT_EQ(read.ignored, std::vector<std::string>{"structured_outputs.backend"});
}

TEST(ConstraintFields, AResponseFormatMayForbidOrKeepBlanks) {
  const std::string compact = R"({"x-guidance":{"whitespace_flexible":false},"const":1})";
  const auto read = [](const std::string& members) {
    return ReadBody(R"({"response_format":{)" + members + "}}");
  };
  const std::string loose = R"("type":"json_schema","json_schema":{"schema":{"const":1}})";
  const Read forbids = read(loose + R"(,"disable_any_whitespace":true)");
  ASSERT_NE(forbids.grammar, nullptr) << forbids.status.message();
  EXPECT_EQ(forbids.grammar->kind, GrammarKind::kLooseJsonSchema);
  EXPECT_EQ(forbids.grammar->text, compact);
  EXPECT_FALSE(forbids.grammar->keeps_blanks);
  const Read keeps = read(loose + R"(,"disable_any_whitespace":false)");
  ASSERT_NE(keeps.grammar, nullptr) << keeps.status.message();
  EXPECT_EQ(keeps.grammar->text, R"({"const":1})");
  EXPECT_TRUE(keeps.grammar->keeps_blanks);
  for (const char* refused :
       {R"("type":"regex","regex":"a","disable_any_whitespace":true)",
        R"("type":"json_object","disable_any_whitespace":1)",
        R"("type":"json","schema":{"x-guidance":{}},"disable_any_whitespace":true)"}) {
    EXPECT_EQ(read(refused).status.field(), "response_format.disable_any_whitespace") << refused;
  }
}

TEST(ConstraintFields, RefusalsNameTheMember) {
  const struct {
    std::string_view body, message;
  } cases[] = {
      {R"({"response_format":"json"})", "response_format: must be an object with a type"},
      {R"({"response_format":{"type":"tree"}})", "response_format.type: must be one of text,"},
      {R"({"response_format":{"type":"regex"}})", "response_format.regex: is required"},
      {R"({"response_format":{"type":"json_schema"}})",
       "response_format.json_schema: must be an object with a schema"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"strict":true}}})",
       "response_format.json_schema.schema: is required with strict"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"strict":1}}})",
       "response_format.json_schema.strict: must be a boolean, not"},
      {R"({"guided_json":[1]})", "guided_json: must be an object or its JSON text, not"},
      {R"({"guided_regex":1})", "guided_regex: must be a string, not"},
      {R"({"guided_choice":"a"})", "guided_choice: must be an array of strings, not"},
      {R"({"guided_json_object":1})", "guided_json_object: must be a boolean, not"},
      {R"({"structured_outputs":[]})", "structured_outputs: must be an object, not"},
      {R"({"structured_outputs":{"structural_tag":"{}"}})",
       "structured_outputs.structural_tag: is"},
      {R"({"structured_outputs":{}})", "structured_outputs: must hold one of json, regex"},
      {R"({"structured_outputs":{"regx":"[0-9]"}})", "structured_outputs: must hold one of json"},
      {R"({"regex":"a","structured_outputs":{"disable_any_whitespace":true}})",
       "structured_outputs: must hold one of json"},
      {R"({"structured_outputs":{"json":{},"whitespace_pattern":" ?"}})",
       "structured_outputs.whitespace_pattern: is not supported"},
      {R"({"structured_outputs":{"json":{},"disable_additional_properties":true}})",
       "structured_outputs.disable_additional_properties: is not supported"},
      {R"({"structured_outputs":{"json":{},"disable_any_whitespace":1}})",
       "structured_outputs.disable_any_whitespace: must be a boolean"},
      {R"({"structured_outputs":{"regex":"a","disable_any_whitespace":true}})",
       "structured_outputs.disable_any_whitespace: has an effect only beside json"},
      {R"({"structured_outputs":{"json":{"x-guidance":{}},"disable_any_whitespace":true}})",
       "structured_outputs.disable_any_whitespace: is not allowed beside"},
      {R"({"guided_regex":"a","guided_choice":["b"]})",
       "guided_choice: is not allowed beside guided_regex"},
      {R"({"response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"}})",
       "structured_outputs.regex: is not allowed beside response_format"},
  };
  for (const auto& [body, message] : cases) {
    const Read read = ReadBody(body);
    EXPECT_EQ(read.status.code(), Code::kInvalidArgument) << body;
    EXPECT_TRUE(read.status.message().starts_with(message)) << read.status.message();
  }
}

}  // namespace
}  // namespace tandem::serve::openai
