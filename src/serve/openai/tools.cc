#include "serve/openai/tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/field_reader.h"

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kNeedsGrammar = "is not supported yet: calls do not follow a grammar";

std::string_view NameOf(const Json& tool) {
  return *tool.Find("function")->Find("name")->AsString();
}

Status ReadChoice(const Json* choice, ToolRequest& request) {
  request.choice = ToolChoice::kAuto;
  if (choice == nullptr) return {};
  if (const std::string* word = choice->AsString()) {
    if (*word == "none") request.choice = ToolChoice::kNone;
    if (*word == "required") request.choice = ToolChoice::kRequired;
    if (*word == "none" || *word == "required" || *word == "auto") return {};
    return FieldError("tool_choice", "must be none, auto, required or a function's name");
  }
  const Json* function = choice->Find("function");
  const Json* name = function == nullptr ? nullptr : function->Find("name");
  if (name == nullptr || name->AsString() == nullptr) {
    return FieldError("tool_choice", "must be a string, or an object with a function's name");
  }
  request.choice = ToolChoice::kNamed;
  request.named = *name->AsString();
  return {};
}

}  // namespace

Result<ToolRequest> ReadTools(const Json& body) {
  FieldReader fields(body);
  ToolRequest request;
  const Json* tools = fields.Get("tools");
  const Json* choice = fields.Get("tool_choice");
  request.tools.parallel = fields.Boolean("parallel_tool_calls").value_or(true);
  TANDEM_RETURN_IF_ERROR(fields.status());
  TANDEM_RETURN_IF_ERROR(ReadChoice(choice, request));
  if (tools == nullptr || tools->AsArray()->empty()) {
    if (request.choice == ToolChoice::kRequired || request.choice == ToolChoice::kNamed) {
      return FieldError("tool_choice", "needs tools");
    }
    return ToolRequest();
  }
  for (size_t i = 0; i < tools->AsArray()->size(); ++i) {
    const Json& tool = (*tools->AsArray())[i];
    const Json* strict = tool.Find("function")->Find("strict");
    if (strict != nullptr && strict->AsBool() != nullptr && *strict->AsBool()) {
      return FieldError(fmt::format("tools[{}].function.strict", i), kNeedsGrammar);
    }
    if (request.choice != ToolChoice::kNone) request.tools.names.emplace_back(NameOf(tool));
  }
  const auto& names = request.tools.names;
  if (request.choice == ToolChoice::kNamed &&
      std::ranges::find(names, request.named) == names.end()) {
    return FieldError("tool_choice", "names no function of tools");
  }
  if (request.choice == ToolChoice::kRequired || request.choice == ToolChoice::kNamed) {
    return FieldError(
        "tool_choice",
        fmt::format("{} {}",
                    request.choice == ToolChoice::kNamed ? "a function's name" : "required",
                    kNeedsGrammar));
  }
  return request;
}

std::string ToolCallSchema(const Json& tools, std::string_view named, const ToolFormat& format) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("anyOf").BeginArray();
  for (const Json& tool : *tools.AsArray()) {
    if (!named.empty() && NameOf(tool) != named) continue;
    const Json* parameters = tool.Find("function")->Find("parameters");
    writer.BeginObject().Key("type").String("object").Key("properties").BeginObject();
    writer.Key("name").BeginObject().Key("const").String(NameOf(tool)).EndObject();
    writer.Key(format.arguments);
    if (parameters != nullptr && parameters->AsObject() != nullptr) {
      writer.Value(*parameters);
    } else {
      writer.BeginObject().Key("type").String("object").EndObject();
    }
    writer.EndObject().Key("required").BeginArray().String("name").String(format.arguments);
    writer.EndArray().Key("additionalProperties").Bool(false).EndObject();
  }
  writer.EndArray().EndObject();
  return out;
}

}  // namespace tandem::serve::openai
