#include "serve/chat_refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "serve/json.h"

namespace tandem::serve {
namespace {

// Of a chat that is rendered again, about nine times.
constexpr size_t kMaxMessages = 256;
constexpr size_t kMaxBytes = 64 << 10;

constexpr std::string_view kTemplate = "chat template: ";
constexpr std::string_view kRaised = "invalid operation: ";  // the template's own sentence follows
// What templates are most often without; the text may come from the user too.
constexpr std::array<std::string_view, 3> kReplaceable = {"system", "developer", "tool"};

std::string RoleOf(const Json& message) {
  const Json* role = message.Find("role");
  return role == nullptr || role->AsString() == nullptr ? "" : *role->AsString();
}

Json FromUser(const Json& message) {
  Json::Object members = *message.AsObject();
  for (JsonMember& member : members) {
    if (member.name == "role") member.value = Json(std::string("user"));
  }
  return Json(std::move(members));
}

// The template's sentence, without the words around it.
std::string_view SentenceOf(std::string_view message) {
  message.remove_prefix(kTemplate.size());
  if (message.starts_with(kRaised)) message.remove_prefix(kRaised.size());
  return message;
}

}  // namespace

Status ExplainRefusal(const TextRequest& text, const TextCodec& codec,
                      const ChatTemplate::RenderOptions& options, Status refusal) {
  const std::string& messages = *text.messages;
  if (refusal.code() != Code::kInvalidArgument || messages.size() > kMaxBytes ||
      !std::string_view(refusal.message()).starts_with(kTemplate)) {
    return refusal;
  }
  const Result<Json> read = ParseJson(messages, {.allow_duplicates = true});
  if (!read.ok() || read->AsArray() == nullptr) return refusal;
  const Json::Array& list = *read->AsArray();
  if (list.empty() || list.size() > kMaxMessages) return refusal;
  const auto refuses = [&](Json::Array beginning) {
    const Status status = codec.RenderChat(Json(std::move(beginning)).Dump(), options).status();
    return status.message() == refusal.message();
  };
  const auto first = [&](size_t count) {
    return Json::Array(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count));
  };
  if (refuses({})) return refusal;  // whatever the messages are
  size_t good = 0;
  size_t bad = list.size();
  while (bad - good > 1) {
    const size_t middle = good + (bad - good) / 2;
    (refuses(first(middle)) ? bad : good) = middle;
  }
  const std::string role = RoleOf(list[good]);
  std::string remedy;
  if (std::ranges::find(kReplaceable, role) != kReplaceable.end()) {
    Json::Array replaced = first(bad);
    replaced.back() = FromUser(replaced.back());
    if (!refuses(std::move(replaced))) {
      remedy = "; this model has no such role here: send the text as a message of the user";
    }
  }
  // Other names' values hold more than messages, so an index would not be the client's.
  const bool has_index = text.names.messages == FieldNames().messages;
  const std::string field = has_index ? fmt::format("{}[{}]", text.names.messages, good)
                                      : std::string(text.names.messages);
  return FieldError(field, fmt::format("the model's chat template refuses the message with the "
                                       "role \"{}\": {}{}",
                                       role, SentenceOf(refusal.message()), remedy));
}

}  // namespace tandem::serve
