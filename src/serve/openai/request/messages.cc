#include "serve/openai/request/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "serve/field_reader.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxMessages = 4096;
constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
// Of parts of text: the names of chats, and of the inputs and outputs of responses.
constexpr std::array<std::string_view, 3> kTextTypes = {"text", "input_text", "output_text"};

Status WrongKind(const std::string& where, std::string_view wanted, const Json& value) {
  return FieldError(where, fmt::format("must be {}, not {}", wanted, value.KindName()));
}

const Json* Given(const Json& object, std::string_view name) {
  const Json* value = object.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

// Null when the member is missing.
Result<const std::string*> ReadText(const Json& object, std::string_view name,
                                    const std::string& where) {
  const Json* value = Given(object, name);
  if (value == nullptr) return nullptr;
  if (value->AsString() == nullptr) {
    return WrongKind(fmt::format("{}.{}", where, name), "a string", *value);
  }
  return value->AsString();
}

Status WriteContent(const Json* content, const std::string& where, JsonWriter& writer) {
  if (content == nullptr) {
    writer.String("");
    return {};
  }
  if (content->AsString() != nullptr) {
    writer.String(*content->AsString());
    return {};
  }
  if (content->AsArray() == nullptr) {
    return WrongKind(where, "a string or an array of parts", *content);
  }
  writer.BeginArray();
  for (const Json& part : *content->AsArray()) {
    const Json* type = part.Find("type");
    const Json* value = part.Find("text");
    const bool is_text = type != nullptr && type->AsString() != nullptr &&
                         std::ranges::find(kTextTypes, *type->AsString()) != kTextTypes.end();
    if (!is_text || value == nullptr || value->AsString() == nullptr) {
      return FieldError(where, "only parts of type \"text\" are supported by this server");
    }
    writer.BeginObject().Key("type").String("text").Key("text").String(*value->AsString());
    writer.EndObject();
  }
  writer.EndArray();
  return {};
}

// Templates want the arguments as an object; clients send its text.
void WriteArguments(const Json& function, JsonWriter& writer) {
  writer.Key("arguments");
  const Json* arguments = Given(function, "arguments");
  if (arguments == nullptr) {
    writer.BeginObject().EndObject();
  } else if (arguments->AsString() != nullptr) {
    const std::string& text = *arguments->AsString();
    const Result<Json> object = ParseJson(text.empty() ? "{}" : text);
    const bool is_object = object.ok() && object->AsObject() != nullptr;
    writer.Value(is_object ? *object : *arguments);
  } else {
    writer.Value(*arguments);
  }
}

Status WriteToolCalls(const Json& calls, const std::string& where, JsonWriter& writer) {
  if (calls.AsArray() == nullptr) return WrongKind(where, "an array", calls);
  writer.BeginArray();
  for (size_t i = 0; i < calls.AsArray()->size(); ++i) {
    const Json& call = (*calls.AsArray())[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    const Json* function = Given(call, "function");
    if (function == nullptr || function->AsObject() == nullptr) {
      return FieldError(at, "must be an object with a function");
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string* name, ReadText(*function, "name", at + ".function"));
    if (name == nullptr) return FieldError(at + ".function.name", "is required");
    TANDEM_ASSIGN_OR_RETURN(const std::string* id, ReadText(call, "id", at));
    writer.BeginObject();
    if (id != nullptr) writer.Key("id").String(*id);
    writer.Key("type").String("function").Key("function").BeginObject();
    writer.Key("name").String(*name);
    WriteArguments(*function, writer);
    writer.EndObject().EndObject();
  }
  writer.EndArray();
  return {};
}

// As OpenAI has it: only an assistant may have said nothing, where it called, reasoned or refused.
Status CheckContent(const Json& message, const std::string& role, const std::string& where) {
  if (Given(message, "content") != nullptr) return {};
  const auto has = [&](std::string_view name) { return Given(message, name) != nullptr; };
  const bool is_null = message.Find("content") != nullptr;
  const bool may_lack = role == "assistant" && (is_null || has("tool_calls") || has("refusal") ||
                                                has("reasoning_content"));
  if (may_lack) return {};
  return FieldError(where + ".content",
                    is_null ? "must be a string or an array of parts, not null" : "is required");
}

Result<std::string> ReadMessages(const Json& body) {
  const Json* messages = Given(body, "messages");
  if (messages == nullptr) return FieldError("messages", "is required");
  const Json::Array* list = messages->AsArray();
  if (list == nullptr) return WrongKind("messages", "an array", *messages);
  if (list->empty()) return FieldError("messages", "must not be empty");
  if (list->size() > kMaxMessages) return FieldError("messages", "has too many messages");
  std::string out;
  JsonWriter writer(out);
  writer.BeginArray();
  for (size_t i = 0; i < list->size(); ++i) {
    TANDEM_RETURN_IF_ERROR(WriteMessage((*list)[i], fmt::format("messages[{}]", i), writer));
  }
  writer.EndArray();
  return out;
}

// The text of the last message's content, of its last part if it has parts.
Result<std::string> LastContent(const Json& body) {
  const Json& last = body.Find("messages")->AsArray()->back();
  const Json* content = Given(last, "content");
  if (content != nullptr && content->AsArray() != nullptr && !content->AsArray()->empty()) {
    content = content->AsArray()->back().Find("text");
  }
  if (content == nullptr || content->AsString() == nullptr) {
    return FieldError("continue_final_message", "needs a last message with content");
  }
  return *content->AsString();
}

}  // namespace

Status WriteMessage(const Json& message, const std::string& where, JsonWriter& writer) {
  if (message.AsObject() == nullptr) return WrongKind(where, "an object", message);
  const Json* role = message.Find("role");
  if (role == nullptr || role->AsString() == nullptr) {
    return FieldError(where + ".role", "must be a string");
  }
  const std::string& name = *role->AsString();
  if (std::ranges::find(kRoles, name) == kRoles.end()) {
    return FieldError(where + ".role", "must be one of system, developer, user, assistant, tool");
  }
  TANDEM_RETURN_IF_ERROR(CheckContent(message, name, where));
  writer.BeginObject().Key("role").String(name).Key("content");
  TANDEM_RETURN_IF_ERROR(WriteContent(Given(message, "content"), where + ".content", writer));
  for (const std::string_view member : {"name", "tool_call_id", "reasoning_content"}) {
    TANDEM_ASSIGN_OR_RETURN(const std::string* text, ReadText(message, member, where));
    if (text != nullptr) writer.Key(member).String(*text);
  }
  const Json* calls = Given(message, "tool_calls");
  if (calls != nullptr && calls->AsArray() != nullptr && calls->AsArray()->empty()) calls = nullptr;
  if (calls != nullptr) {
    if (name != "assistant") {
      return FieldError(where + ".tool_calls", "is only allowed in messages of the assistant");
    }
    writer.Key("tool_calls");
    TANDEM_RETURN_IF_ERROR(WriteToolCalls(*calls, where + ".tool_calls", writer));
  }
  writer.EndObject();
  return {};
}

Result<std::string> ReadTemplateVariables(const Json& body, const Json& tools) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject();
  if (const Json* given = Given(body, "chat_template_kwargs")) {
    if (given->AsObject() == nullptr) {
      return WrongKind("chat_template_kwargs", "an object", *given);
    }
    for (const JsonMember& member : *given->AsObject()) {
      if (member.name == "tools") {
        return FieldError("chat_template_kwargs", "cannot set tools; the request's tools are used");
      }
      writer.Key(member.name).Value(member.value);
    }
  }
  if (!tools.is_null()) writer.Key("tools").Value(tools);
  writer.EndObject();
  return out;
}

Status ReadChat(const Json& body, const Json& tools, TextRequest& text) {
  TANDEM_ASSIGN_OR_RETURN(text.messages, ReadMessages(body));
  FieldReader fields(body);
  const std::optional<bool> opens = fields.Boolean("add_generation_prompt");
  const bool continues = fields.Boolean("continue_final_message").value_or(false);
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (continues && opens.value_or(false)) {
    return FieldError("continue_final_message",
                      "cannot be true together with add_generation_prompt");
  }
  text.chat.add_generation_prompt = opens.value_or(!continues);
  if (continues) {
    TANDEM_ASSIGN_OR_RETURN(text.chat.continued, LastContent(body));
    text.continues_prompt = true;
  }
  TANDEM_ASSIGN_OR_RETURN(text.chat.variables, ReadTemplateVariables(body, tools));
  return {};
}

}  // namespace tandem::serve::openai
