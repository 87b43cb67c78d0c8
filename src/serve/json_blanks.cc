#include "serve/json_blanks.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "serve/json.h"

namespace tandem::serve {

bool IsJsonGrammar(const OutputGrammar& grammar) {
  return grammar.kind == GrammarKind::kJsonObject || grammar.kind == GrammarKind::kJsonSchema ||
         grammar.kind == GrammarKind::kLooseJsonSchema;
}

bool ForbidBlanks(OutputGrammar& grammar) {
  if (grammar.kind == GrammarKind::kJsonObject) {
    grammar.kind = GrammarKind::kJsonSchema;
    grammar.text = R"({"type":"object"})";
  }
  std::string& text = grammar.text;
  const Result<Json> schema = ParseJson(text, {.allow_duplicates = true});
  if (!schema.ok() || schema->AsObject() == nullptr) return true;
  if (schema->Find("x-guidance") != nullptr) return false;
  const std::string_view comma = schema->AsObject()->empty() ? "" : ",";
  text.insert(text.find('{') + 1,
              fmt::format(R"("x-guidance":{{"whitespace_flexible":false}}{})", comma));
  return true;
}

}  // namespace tandem::serve
