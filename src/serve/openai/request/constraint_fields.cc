#include "serve/openai/request/constraint_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serve/json_blanks.h"
#include "serve/openai/request/request.h"

namespace tandem::serve::openai {
namespace {

// How a member's value becomes a grammar's text.
enum class Shape : uint8_t {
  kText,     // a string
  kJson,     // a JSON value, or a string that holds its text
  kStrings,  // an array of strings
  kFlag,     // true: any JSON object
};

struct Spelling {
  std::string_view name;
  GrammarKind kind;
  Shape shape;
};

// Members of the body.
constexpr Spelling kMembers[] = {
    {"guided_json", GrammarKind::kJsonSchema, Shape::kJson},  // vLLM, before 0.11
    {"guided_regex", GrammarKind::kRegex, Shape::kText},
    {"guided_choice", GrammarKind::kChoice, Shape::kStrings},
    {"guided_grammar", GrammarKind::kLark, Shape::kText},
    {"guided_json_object", GrammarKind::kJsonObject, Shape::kFlag},
    {"json_schema", GrammarKind::kJsonSchema, Shape::kJson},  // SGLang, llama.cpp
    {"regex", GrammarKind::kRegex, Shape::kText},
    {"ebnf", GrammarKind::kLark, Shape::kText},
    {"choice", GrammarKind::kChoice, Shape::kStrings},
    {"lark_grammar", GrammarKind::kLark, Shape::kText},
    {"llg_grammar", GrammarKind::kGuidance, Shape::kJson},
};

// Members of vLLM's structured_outputs.
constexpr Spelling kStructured[] = {
    {"json", GrammarKind::kJsonSchema, Shape::kJson},
    {"regex", GrammarKind::kRegex, Shape::kText},
    {"choice", GrammarKind::kChoice, Shape::kStrings},
    {"grammar", GrammarKind::kLark, Shape::kText},
    {"json_object", GrammarKind::kJsonObject, Shape::kFlag},
};

// Members of structured_outputs that would have to change the answer; false is no request.
struct RefusedMember {
  std::string_view name;
  std::string_view sentence;
};
constexpr RefusedMember kRefused[] = {
    {"structural_tag", "is not supported by this server; send a grammar"},
    {"whitespace_pattern",
     "is not supported by this server; disable_any_whitespace forbids blanks, and a grammar can "
     "say any others"},
    {"disable_additional_properties",
     "is not supported by this server; say \"additionalProperties\": false in the schema"},
};

// Types of response_format, with the members that hold the grammar, besides json_schema.
struct FormatType {
  std::string_view type;
  Spelling member;
};
constexpr FormatType kFormatTypes[] = {
    {"regex", {"regex", GrammarKind::kRegex, Shape::kText}},
    {"choice", {"choice", GrammarKind::kChoice, Shape::kStrings}},
    {"lark_grammar", {"lark_grammar", GrammarKind::kLark, Shape::kText}},
    {"grammar", {"grammar", GrammarKind::kLark, Shape::kText}},
    {"ebnf", {"ebnf", GrammarKind::kLark, Shape::kText}},
    {"llguidance", {"grammar", GrammarKind::kGuidance, Shape::kJson}},
    {"json", {"schema", GrammarKind::kJsonSchema, Shape::kJson}},
};

constexpr std::string_view kTypes =
    "text, json_object, json_schema, json, regex, choice, lark_grammar, grammar, ebnf, llguidance";

// vLLM's word in structured_outputs; beside a format ours too.
constexpr std::string_view kNoBlanks = "disable_any_whitespace";

using Grammar = std::optional<OutputGrammar>;

// Collects the one grammar of a request, and its errors.
class GrammarReader {
 public:
  explicit GrammarReader(FieldReader& fields) : fields_(fields) {}

  void ReadMember(const Json* value, const Spelling& spelling, const std::string& field) {
    if (value == nullptr || value->is_null()) return;
    switch (spelling.shape) {
      case Shape::kText:
        if (const std::string* text = value->AsString()) return Found(spelling, *text, field);
        return Wrong(field, "a string", *value);
      case Shape::kJson:
        if (const std::string* text = value->AsString()) return Found(spelling, *text, field);
        if (value->AsObject() == nullptr && value->AsBool() == nullptr) {
          return Wrong(field, "an object or its JSON text", *value);
        }
        return Found(spelling, value->Dump(), field);
      case Shape::kStrings:
        if (value->AsArray() == nullptr) return Wrong(field, "an array of strings", *value);
        return Found(spelling, value->Dump(), field);
      case Shape::kFlag:
        if (value->AsBool() == nullptr) return Wrong(field, "a boolean", *value);
        if (*value->AsBool()) Found(spelling, "", field);
        return;
    }
  }

  // `format`: of the member `at`. With `is_flat` a schema stands in it, not in a json_schema.
  void ReadFormat(const Json& format, const std::string& at, bool is_flat) {
    ReadForm(format, at, is_flat);
    ReadBlanks(format, at, "a format of JSON");
  }

  // vLLM's object: a grammar, and options for it.
  void ReadStructured(const Json& structured, std::vector<std::string>& ignored) {
    const std::string at = "structured_outputs";
    if (structured.AsObject() == nullptr) return Wrong(at, "an object", structured);
    FieldReader members(structured);
    for (const RefusedMember& member : kRefused) {
      const Json* value = members.Get(member.name);
      const bool is_off = value == nullptr || (value->AsBool() != nullptr && !*value->AsBool());
      if (!is_off) return fields_.Fail(fmt::format("{}.{}", at, member.name), member.sentence);
    }
    members.Get(kNoBlanks);
    members.Boolean("disable_fallback");  // there is nothing to fall back to
    if (!members.status().ok()) {
      return fields_.Fail(fmt::format("{}.{}", at, members.status().field()), "must be a boolean");
    }
    for (const Spelling& member : kStructured) {
      ReadMember(members.Get(member.name), member, fmt::format("{}.{}", at, member.name));
    }
    for (const std::string& name : members.Unread(kMaxIgnored)) ignored.push_back(at + "." + name);
    if (!fields_.status().ok()) return;
    const bool is_any = members.Boolean("json_object") == false;  // no form is asked for
    if (!is_any && (!grammar_ || !grammar_->field.starts_with(at + "."))) {
      return fields_.Fail(at, "must hold one of json, regex, choice, grammar and json_object");
    }
    ReadBlanks(structured, at, "json or json_object");
  }

  Grammar Take() { return std::move(grammar_); }

 private:
  void ReadForm(const Json& format, const std::string& at, bool is_flat) {
    const Json* type = format.Find("type");
    if (type == nullptr || type->AsString() == nullptr) {
      return fields_.Fail(at, "must be an object with a type");
    }
    const std::string& name = *type->AsString();
    if (name == "text") return;
    if (name == "json_object") return ReadJsonObject(format, at);
    if (name == "json_schema") {
      return is_flat ? ReadJsonSchema(&format, at)
                     : ReadJsonSchema(format.Find("json_schema"), at + ".json_schema");
    }
    const auto* const found = std::ranges::find(kFormatTypes, name, &FormatType::type);
    if (found == std::end(kFormatTypes)) {
      return fields_.Fail(at + ".type", fmt::format("must be one of {}", kTypes));
    }
    const std::string field = fmt::format("{}.{}", at, found->member.name);
    const Json* value = format.Find(found->member.name);
    if (value == nullptr || value->is_null()) return fields_.Fail(field, "is required");
    ReadMember(value, found->member, field);
  }

  void Found(const Spelling& spelling, std::string text, const std::string& field) {
    if (grammar_) {
      return fields_.Fail(field, fmt::format("is not allowed beside {}", grammar_->field));
    }
    grammar_ = {.kind = spelling.kind, .text = std::move(text), .field = field};
  }
  void Wrong(const std::string& field, std::string_view wanted, const Json& value) {
    fields_.Fail(field, fmt::format("must be {}, not {}", wanted, value.KindName()));
  }

  void ReadBlanks(const Json& options, const std::string& at, std::string_view beside) {
    const Json* forbids = options.Find(kNoBlanks);
    if (forbids == nullptr || forbids->is_null() || !fields_.status().ok()) return;
    const std::string field = fmt::format("{}.{}", at, kNoBlanks);
    if (forbids->AsBool() == nullptr) return Wrong(field, "a boolean", *forbids);
    if (!grammar_) return;
    if (!*forbids->AsBool()) {
      grammar_->keeps_blanks = true;
    } else if (!IsJsonGrammar(*grammar_)) {
      fields_.Fail(field, fmt::format("has an effect only beside {}", beside));
    } else if (!ForbidBlanks(*grammar_)) {
      fields_.Fail(field, "is not allowed beside the schema's own x-guidance");
    }
  }

  // llama.cpp and others put a schema beside it.
  void ReadJsonObject(const Json& format, const std::string& at) {
    const Json* schema = format.Find("schema");
    if (schema == nullptr || schema->is_null()) {
      return Found({"", GrammarKind::kJsonObject, Shape::kFlag}, "", at);
    }
    ReadMember(schema, {"schema", GrammarKind::kJsonSchema, Shape::kJson}, at + ".schema");
  }

  void ReadJsonSchema(const Json* wrapper, const std::string& outer) {
    if (wrapper == nullptr || wrapper->AsObject() == nullptr) {
      return fields_.Fail(outer, "must be an object with a schema");
    }
    const Json* strict = wrapper->Find("strict");
    const bool is_given = strict != nullptr && !strict->is_null();
    if (is_given && strict->AsBool() == nullptr)
      return Wrong(outer + ".strict", "a boolean", *strict);
    const bool is_strict = is_given && *strict->AsBool();
    const Json* schema = wrapper->Find("schema");
    if (schema == nullptr || schema->is_null()) {
      if (is_strict) return fields_.Fail(outer + ".schema", "is required with strict");
      return Found({"", GrammarKind::kJsonObject, Shape::kFlag}, "", outer);
    }
    const GrammarKind kind = is_strict ? GrammarKind::kJsonSchema : GrammarKind::kLooseJsonSchema;
    ReadMember(schema, {"schema", kind, Shape::kJson}, outer + ".schema");
  }

  FieldReader& fields_;
  Grammar grammar_;
};

}  // namespace

std::shared_ptr<const OutputGrammar> ReadGrammar(FieldReader& fields,
                                                 std::vector<std::string>& ignored,
                                                 const Json* text_format) {
  GrammarReader reader(fields);
  if (const Json* format = fields.Get("response_format")) {
    reader.ReadFormat(*format, "response_format", /*is_flat=*/false);
  }
  if (text_format != nullptr) reader.ReadFormat(*text_format, "text.format", /*is_flat=*/true);
  for (const Spelling& member : kMembers) {
    reader.ReadMember(fields.Get(member.name), member, std::string(member.name));
  }
  if (const Json* structured = fields.Get("structured_outputs")) {
    reader.ReadStructured(*structured, ignored);
  }
  Grammar grammar = reader.Take();
  if (!grammar) return nullptr;
  return std::make_shared<const OutputGrammar>(*std::move(grammar));
}

}  // namespace tandem::serve::openai
