// The tools of a chat request: which of them an answer may call, and the grammar of calls that must
// be made. Pure functions; errors are INVALID_ARGUMENT "field: sentence".
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/json.h"
#include "serve/openai/answer_parser.h"

namespace tandem::serve::openai {

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct ToolRequest {
  ToolChoice choice = ToolChoice::kNone;
  std::string named;  // of kNamed
  CallableTools tools;
};

// `tools`, `tool_choice` and `parallel_tool_calls` of a body whose `tools` ReadChat has checked.
// What needs calls that follow a grammar is refused by name: `required`, a named tool, `strict`.
Result<ToolRequest> ReadTools(const Json& body);

// The JSON schema of one call of the format: an object with a tool's name and its arguments. With
// `named` only that tool; a tool without parameters has any object as arguments.
std::string ToolCallSchema(const Json& tools, std::string_view named, const ToolFormat& format);

}  // namespace tandem::serve::openai
