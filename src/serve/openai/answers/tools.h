// The tools of a request: which functions an answer may call, whether it must, and whether its
// calls follow a grammar. Pure functions; errors are INVALID_ARGUMENT "field: sentence".
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "serve/json.h"
#include "serve/openai/answers/answer_part.h"

namespace tandem::serve::openai {

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

// A function that an answer may call.
struct Tool {
  std::string name;
  bool is_strict = false;
  std::string schema;  // of its arguments: a JSON object; empty: any object, of one not strict
  std::string field;   // the client's word for the schema
};

struct ToolRequest {
  ToolChoice choice = ToolChoice::kNone;
  std::vector<Tool> tools;  // those that an answer may call; the named one alone
  bool parallel = true;     // several calls of one answer
  bool is_part = false;     // the client allowed only some of its functions
  Json for_template;        // the client's tools, an array in the form of chats; null: none

  // Whether the calls of an answer follow a grammar: otherwise the model's text decides.
  bool follows_grammar() const;
  bool must_call() const { return choice == ToolChoice::kRequired || choice == ToolChoice::kNamed; }
  // Whether the arguments of a call fit the function's schema: strictly, or of a demanded call as
  // far as its keywords are supported.
  bool follows_schema(const Tool& tool) const {
    return tool.is_strict || (must_call() && !tool.schema.empty());
  }
  CallableTools callable() const;
};

// How a route writes a function: in chats as the member `function` of its tool, in responses as the
// tool itself.
enum class ToolSpelling : uint8_t { kNested, kFlat };

// `tools`, `tool_choice` and `parallel_tool_calls` of a body. A choice may have either spelling.
Result<ToolRequest> ReadTools(const Json& body, ToolSpelling spelling);

}  // namespace tandem::serve::openai
