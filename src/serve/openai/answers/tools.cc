#include "serve/openai/answers/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/field_reader.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxTools = 128;
// What a function without parameters gets, if it is strict.
constexpr std::string_view kNoArguments =
    R"({"type":"object","properties":{},"additionalProperties":false})";

Status WrongKind(const std::string& field, std::string_view wanted, const Json& value) {
  return FieldError(field, fmt::format("must be {}, not {}", wanted, value.KindName()));
}

// Null when the member is missing or null.
const Json* Given(const Json& object, std::string_view name) {
  const Json* value = object.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const std::string* TextOf(const Json* value) {
  return value == nullptr ? nullptr : value->AsString();
}

Result<std::string> ReadSchema(const Json& function, const std::string& field) {
  const Json* schema = Given(function, "parameters");
  if (schema == nullptr) return std::string(kNoArguments);
  const std::string* type = TextOf(Given(*schema, "type"));
  if (type == nullptr || *type != "object") {
    return FieldError(field, R"(of a strict function must have "type": "object")");
  }
  return schema->Dump();
}

// Of a function that is not strict, whose calls are objects whatever the schema says: empty where
// it speaks of something else.
std::string LooseSchema(const Json* parameters) {
  if (parameters == nullptr || parameters->AsObject()->empty()) return "";
  const Json* type = Given(*parameters, "type");
  if (type != nullptr) {
    const std::string* name = TextOf(type);
    return name != nullptr && *name == "object" ? parameters->Dump() : "";
  }
  Json::Object members = *parameters->AsObject();
  std::erase_if(members, [](const JsonMember& member) { return member.name == "type"; });
  members.push_back({"type", Json(std::string("object"))});
  return Json(std::move(members)).Dump();
}

// `at`: of the function, without the dot.
Result<Tool> ReadFunction(const Json& function, const std::string& at) {
  const std::string* name = TextOf(Given(function, "name"));
  if (name == nullptr || name->empty()) return FieldError(at + ".name", "must be a string");
  // OpenAI allows letters, digits, _ and - alone; clients of other servers use dots and slashes
  // too.
  const auto is_blank = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; };
  if (std::ranges::any_of(*name, is_blank)) {
    return FieldError(at + ".name", "must not hold blanks; letters, digits, _ and - are best");
  }
  const Json* parameters = Given(function, "parameters");
  if (parameters != nullptr && parameters->AsObject() == nullptr) {
    return WrongKind(at + ".parameters", "a JSON schema", *parameters);
  }
  const Json* strict = Given(function, "strict");
  if (strict != nullptr && strict->AsBool() == nullptr) {
    return WrongKind(at + ".strict", "a boolean", *strict);
  }
  Tool tool;
  tool.name = *name;
  tool.field = at + ".parameters";
  tool.is_strict = strict != nullptr && *strict->AsBool();
  if (tool.is_strict) {
    TANDEM_ASSIGN_OR_RETURN(tool.schema, ReadSchema(function, tool.field));
  } else {
    tool.schema = LooseSchema(parameters);
  }
  return tool;
}

// A flat tool in the form of chats, which templates expect.
Json Nested(const Json& flat) {
  Json::Object function = *flat.AsObject();
  std::erase_if(function, [](const JsonMember& member) { return member.name == "type"; });
  Json::Object tool;
  tool.push_back({"type", Json(std::string("function"))});
  tool.push_back({"function", Json(std::move(function))});
  return Json(std::move(tool));
}

Status ReadList(const Json& list, ToolSpelling spelling, ToolRequest& request) {
  if (list.AsArray() == nullptr) return WrongKind("tools", "an array", list);
  if (list.AsArray()->size() > kMaxTools) {
    return FieldError("tools", fmt::format("at most {} tools are allowed", kMaxTools));
  }
  Json::Array for_template;
  for (size_t i = 0; i < list.AsArray()->size(); ++i) {
    const Json& tool = (*list.AsArray())[i];
    std::string at = fmt::format("tools[{}]", i);
    const std::string* type = TextOf(Given(tool, "type"));
    if (type == nullptr) return FieldError(at + ".type", "must be \"function\"");
    if (*type != "function") {
      return FieldError(
          at + ".type",
          fmt::format("\"{}\" is not supported; it must be \"function\", because this "
                      "server runs no tools of its own",
                      *type));
    }
    const bool is_nested = spelling == ToolSpelling::kNested;
    const Json missing;
    const Json* function = is_nested ? Given(tool, "function") : &tool;
    if (is_nested) at += ".function";
    TANDEM_ASSIGN_OR_RETURN(Tool read, ReadFunction(function == nullptr ? missing : *function, at));
    request.tools.push_back(std::move(read));
    for_template.push_back(is_nested ? tool : Nested(tool));
  }
  if (!for_template.empty()) request.for_template = Json(std::move(for_template));
  return {};
}

Status SetMode(const std::string& word, const std::string& field, ToolRequest& request) {
  if (word == "none") {
    request.choice = ToolChoice::kNone;
  } else if (word == "auto") {
    request.choice = ToolChoice::kAuto;
  } else if (word == "required") {
    request.choice = ToolChoice::kRequired;
  } else {
    return FieldError(field, "must be none, auto, required or a function's name");
  }
  return {};
}

// The name in {"type": "function", "name": ...} or {"type": "function", "function": {"name": ...}}.
Result<std::string> NameIn(const Json& choice, const std::string& field) {
  const std::string* type = TextOf(Given(choice, "type"));
  const Json* function = Given(choice, "function");
  const std::string* name = TextOf(Given(function == nullptr ? choice : *function, "name"));
  if (type == nullptr || *type != "function" || name == nullptr) {
    return FieldError(field,
                      R"(must be a string, or an object with "type": "function" and a name)");
  }
  return *name;
}

// Leaves only the functions that `names` has.
Status Allow(const std::vector<std::string>& names, ToolRequest& request) {
  for (const std::string& name : names) {
    if (std::ranges::find(request.tools, name, &Tool::name) == request.tools.end()) {
      return FieldError("tool_choice",
                        fmt::format("names \"{}\", which is no function of tools", name));
    }
  }
  const size_t before = request.tools.size();
  std::erase_if(request.tools, [&](const Tool& tool) {
    return std::ranges::find(names, tool.name) == names.end();
  });
  request.is_part = request.tools.size() < before;
  return {};
}

// {"type": "allowed_tools", "mode": ..., "tools": [...]}, or with these in a member
// `allowed_tools`.
Status ReadAllowed(const Json& choice, ToolRequest& request) {
  const Json* inner = Given(choice, "allowed_tools");
  const std::string field = inner == nullptr ? "tool_choice" : "tool_choice.allowed_tools";
  if (inner == nullptr) inner = &choice;
  const std::string* mode = TextOf(Given(*inner, "mode"));
  if (mode == nullptr || (*mode != "auto" && *mode != "required")) {
    return FieldError(field + ".mode", "must be auto or required");
  }
  const Json* tools = Given(*inner, "tools");
  if (tools == nullptr || tools->AsArray() == nullptr || tools->AsArray()->empty()) {
    return FieldError(field + ".tools", "must be an array of at least one function");
  }
  std::vector<std::string> names;
  for (const Json& tool : *tools->AsArray()) {
    TANDEM_ASSIGN_OR_RETURN(std::string name, NameIn(tool, field + ".tools"));
    names.push_back(std::move(name));
  }
  TANDEM_RETURN_IF_ERROR(SetMode(*mode, field + ".mode", request));
  return Allow(names, request);
}

Status ReadChoice(const Json* choice, ToolRequest& request) {
  request.choice = ToolChoice::kAuto;
  if (choice == nullptr) return {};
  if (choice->AsString() != nullptr) return SetMode(*choice->AsString(), "tool_choice", request);
  const std::string* type = TextOf(Given(*choice, "type"));
  if (type != nullptr && *type == "allowed_tools") return ReadAllowed(*choice, request);
  TANDEM_ASSIGN_OR_RETURN(const std::string name, NameIn(*choice, "tool_choice"));
  TANDEM_RETURN_IF_ERROR(Allow({name}, request));
  request.choice = ToolChoice::kNamed;
  return {};
}

}  // namespace

bool ToolRequest::follows_grammar() const {
  if (choice == ToolChoice::kNone || tools.empty()) return false;
  return must_call() || is_part || std::ranges::any_of(tools, &Tool::is_strict);
}

CallableTools ToolRequest::callable() const {
  CallableTools callable;
  if (choice == ToolChoice::kNone) return callable;
  for (const Tool& tool : tools) callable.names.push_back(tool.name);
  callable.parallel = parallel;
  callable.follow_grammar = follows_grammar();
  callable.is_named = choice == ToolChoice::kNamed;
  return callable;
}

Result<ToolRequest> ReadTools(const Json& body, ToolSpelling spelling) {
  FieldReader fields(body);
  ToolRequest request;
  const Json* tools = fields.Get("tools");
  const Json* choice = fields.Get("tool_choice");
  request.parallel = fields.Boolean("parallel_tool_calls").value_or(true);
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (tools != nullptr) TANDEM_RETURN_IF_ERROR(ReadList(*tools, spelling, request));
  const bool has_tools = !request.tools.empty();
  TANDEM_RETURN_IF_ERROR(ReadChoice(choice, request));
  if (request.must_call() && !has_tools) return FieldError("tool_choice", "needs tools");
  if (!has_tools || request.choice == ToolChoice::kNone) {
    request.choice = ToolChoice::kNone;
    request.for_template = Json();
  }
  return request;
}

}  // namespace tandem::serve::openai
