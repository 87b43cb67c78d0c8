#include "serve/openai/responses/input.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "serve/openai/request/messages.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxItems = 4096;

Json Text(std::string_view text) { return Json(std::string(text)); }

// Collects the messages, in the form of chats.
class InputReader {
 public:
  void AddInstructions(const std::string& text) {
    Add(Json(Json::Object{{"role", Text("system")}, {"content", Text(text)}}), "instructions");
  }
  void AddUserText(const Json& text) {
    Add(Json(Json::Object{{"role", Text("user")}, {"content", text}}), "input");
  }

  Status AddItem(const Json& item, const std::string& where) {
    const Json* type = item.Find("type");
    const std::string* name = type == nullptr ? nullptr : type->AsString();
    const bool has_type = type != nullptr && !type->is_null();
    if (item.AsObject() == nullptr || (has_type && name == nullptr)) {
      return FieldError(where, "must be an object whose type is a string");
    }
    if (!has_type || *name == "message") return AddMessage(item, where);
    if (*name == "function_call") return AddCall(item, where);
    if (*name == "function_call_output") return AddOutput(item, where);
    if (*name == "reasoning") return {};
    if (*name == "item_reference") {
      return FieldError(where + ".type",
                        "\"item_reference\" is not supported: this server stores no items");
    }
    return FieldError(where + ".type",
                      fmt::format("\"{}\" is not supported; there are message, function_call, "
                                  "function_call_output and reasoning",
                                  *name));
  }

  Result<std::string> Write() {
    std::string out;
    JsonWriter writer(out);
    writer.BeginArray();
    for (Message& message : messages_) {
      if (!message.calls.empty()) {
        Json::Object members = *message.value.AsObject();
        members.push_back({"tool_calls", Json(std::move(message.calls))});
        message.value = Json(std::move(members));
      }
      TANDEM_RETURN_IF_ERROR(WriteMessage(message.value, message.where, writer));
    }
    writer.EndArray();
    return out;
  }

 private:
  struct Message {
    Json value;
    std::string where;
    Json::Array calls;  // the message is the assistant's
  };

  void Add(Json value, const std::string& where) {
    messages_.push_back({std::move(value), where, {}});
  }

  Status AddMessage(const Json& item, const std::string& where) {
    const Json* content = item.Find("content");
    if (content == nullptr || content->is_null()) {
      return FieldError(where + ".content", "is required");
    }
    const Json* role = item.Find("role");
    Add(Json(Json::Object{{"role", role == nullptr ? Json() : *role}, {"content", *content}}),
        where);
    return {};
  }

  // Calls that follow each other, or what the assistant said, are one message of a chat.
  Status AddCall(const Json& item, const std::string& where) {
    for (const std::string_view member : {"call_id", "name", "arguments"}) {
      TANDEM_RETURN_IF_ERROR(NeedText(item, member, where));
    }
    const Json* role = messages_.empty() ? nullptr : messages_.back().value.Find("role");
    if (role == nullptr || role->AsString() == nullptr || *role->AsString() != "assistant") {
      Add(Json(Json::Object{{"role", Text("assistant")}, {"content", Json()}}), where);
    }
    Json::Object function{{"name", *item.Find("name")}, {"arguments", *item.Find("arguments")}};
    messages_.back().calls.push_back(Json(Json::Object{{"id", *item.Find("call_id")},
                                                       {"type", Text("function")},
                                                       {"function", Json(std::move(function))}}));
    return {};
  }

  Status AddOutput(const Json& item, const std::string& where) {
    TANDEM_RETURN_IF_ERROR(NeedText(item, "call_id", where));
    const Json* output = item.Find("output");
    if (output == nullptr || output->is_null()) {
      return FieldError(where + ".output", "is required");
    }
    Add(Json(Json::Object{
            {"role", Text("tool")}, {"tool_call_id", *item.Find("call_id")}, {"content", *output}}),
        where);
    return {};
  }

  static Status NeedText(const Json& item, std::string_view name, const std::string& where) {
    const Json* value = item.Find(name);
    if (value != nullptr && value->AsString() != nullptr) return {};
    return FieldError(fmt::format("{}.{}", where, name), "must be a string");
  }

  std::vector<Message> messages_;
};

}  // namespace

Result<std::string> ReadInput(const Json* input, const std::optional<std::string>& instructions) {
  if (input == nullptr) return FieldError("input", "is required");
  InputReader reader;
  if (instructions) reader.AddInstructions(*instructions);
  if (input->AsString() != nullptr) {
    reader.AddUserText(*input);
    return reader.Write();
  }
  const Json::Array* items = input->AsArray();
  if (items == nullptr) {
    return FieldError(
        "input", fmt::format("must be a string or an array of items, not {}", input->KindName()));
  }
  if (items->empty()) return FieldError("input", "must not be empty");
  if (items->size() > kMaxItems) return FieldError("input", "has too many items");
  for (size_t i = 0; i < items->size(); ++i) {
    TANDEM_RETURN_IF_ERROR(reader.AddItem((*items)[i], fmt::format("input[{}]", i)));
  }
  return reader.Write();
}

}  // namespace tandem::serve::openai
