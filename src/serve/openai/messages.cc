#include "serve/openai/messages.h"

#include <fmt/format.h>

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxMessages = 4096;

// A message's content as one string; parts of text are joined by line ends.
Result<std::string> ReadContent(const Json* content, const std::string& where) {
  if (content == nullptr || content->is_null()) return std::string();
  if (content->AsString() != nullptr) return *content->AsString();
  if (content->AsArray() == nullptr) {
    return FieldError(
        where, fmt::format("must be a string or an array of parts, not {}", content->KindName()));
  }
  std::string text;
  for (const Json& part : *content->AsArray()) {
    const Json* type = part.Find("type");
    const Json* value = part.Find("text");
    if (type == nullptr || type->AsString() == nullptr || *type->AsString() != "text" ||
        value == nullptr || value->AsString() == nullptr) {
      return FieldError(where, "only parts of type \"text\" are supported by this server");
    }
    if (!text.empty()) text += '\n';
    text += *value->AsString();
  }
  return text;
}

}  // namespace

Result<std::string> ReadMessages(const Json& body) {
  const Json* messages = body.Find("messages");
  if (messages == nullptr || messages->is_null()) return FieldError("messages", "is required");
  const Json::Array* list = messages->AsArray();
  if (list == nullptr) {
    return FieldError("messages", fmt::format("must be an array, not {}", messages->KindName()));
  }
  if (list->empty()) return FieldError("messages", "must not be empty");
  if (list->size() > kMaxMessages) return FieldError("messages", "has too many messages");
  std::string out;
  JsonWriter writer(out);
  writer.BeginArray();
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    const std::string where = fmt::format("messages[{}]", i);
    if (message.AsObject() == nullptr) {
      return FieldError(where, fmt::format("must be an object, not {}", message.KindName()));
    }
    const Json* role = message.Find("role");
    if (role == nullptr || role->AsString() == nullptr) {
      return FieldError(where + ".role", "must be a string");
    }
    const std::string& name = *role->AsString();
    if (name != "system" && name != "developer" && name != "user" && name != "assistant" &&
        name != "tool") {
      return FieldError(where + ".role", "must be one of system, developer, user, assistant, tool");
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string content,
                            ReadContent(message.Find("content"), where + ".content"));
    writer.BeginObject();
    // Templates know the older name.
    writer.Key("role").String(name == "developer" ? "system" : name);
    writer.Key("content").String(content).EndObject();
  }
  writer.EndArray();
  return out;
}

}  // namespace tandem::serve::openai
