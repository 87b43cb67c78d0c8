#include "serve/chat_prompt.h"

#include <string>
#include <utility>

#include "serve/chat_refusal.h"
#include "serve/free_word.h"
#include "serve/json.h"

namespace tandem::serve {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

std::string_view WithoutSpaceAfter(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

void SetMember(std::string_view name, Json value, Json::Object& object) {
  for (JsonMember& member : object) {
    if (member.name == name) member.value = std::move(value);
  }
}

// The messages with another content of the last one, or of its last part.
Result<std::string> WithLastContent(std::string_view messages, const std::string& content) {
  TANDEM_ASSIGN_OR_RETURN(const Json read, ParseJson(messages, {.allow_duplicates = true}));
  Json::Array list = *read.AsArray();
  Json::Object last = *list.back().AsObject();
  const Json* before = list.back().Find("content");
  if (before != nullptr && before->AsArray() != nullptr) {
    Json::Array parts = *before->AsArray();
    Json::Object part = *parts.back().AsObject();
    SetMember("text", Json(content), part);
    parts.back() = Json(std::move(part));
    SetMember("content", Json(std::move(parts)), last);
  } else {
    SetMember("content", Json(content), last);
  }
  list.back() = Json(std::move(last));
  return Json(std::move(list)).Dump();
}

// Cuts off what the template writes after the last message's content. The content cannot be looked
// for: "s" stands in the name of the token "</s>" too. So what follows it is seen where a word that
// occurs nowhere else takes its place.
Status EndWithLastContent(const TextRequest& text, const TextCodec& codec,
                          const ChatTemplate::RenderOptions& options, ChatText& chat) {
  const std::string_view all = *text.chat.continued;
  const size_t first = all.find_first_not_of(kWhiteSpace);
  if (first == all.npos) {
    return FieldError(text.names.messages, "the message to continue is empty");
  }
  FreeWord free;
  free.Avoid(chat.text);
  free.Avoid(*text.messages);
  const std::string word = free.Word();
  TANDEM_ASSIGN_OR_RETURN(const std::string messages, WithLastContent(*text.messages, word));
  TANDEM_ASSIGN_OR_RETURN(const ChatText other, codec.RenderChat(messages, options));
  const size_t at = other.text.rfind(word);
  const std::string_view after =
      std::string_view(other.text).substr(at == other.text.npos ? 0 : at + word.size());
  std::string_view shown = chat.text;
  if (at != other.text.npos && shown.ends_with(after)) {
    shown.remove_suffix(after.size());
    // Templates may have trimmed it.
    const std::string_view rest = all.substr(first);
    if (shown.ends_with(rest) || shown.ends_with(WithoutSpaceAfter(rest))) {
      chat.text.resize(shown.size());
      return {};
    }
  }
  return FieldError("continue_final_message",
                    "this model's chat template does not show the last message as it is");
}

}  // namespace

ReasoningStart FindReasoningStart(const ReasoningMarks& marks, std::string_view text) {
  const std::string_view end = WithoutSpaceAfter(text);
  if (end.ends_with(marks.begin)) return ReasoningStart::kOpen;
  return end.ends_with(marks.end) ? ReasoningStart::kClosed : ReasoningStart::kUnopened;
}

Result<ChatPrompt> RenderPrompt(const TextRequest& text, const TextCodec& codec) {
  ChatTemplate::RenderOptions options;
  options.add_generation_prompt = text.chat.add_generation_prompt;
  options.variables_json = text.chat.variables;
  ChatPrompt prompt;
  Result<ChatText> chat = codec.RenderChat(*text.messages, options);
  if (!chat.ok()) return ExplainRefusal(text, codec, options, chat.status());
  prompt.chat = *std::move(chat);
  if (prompt.chat.text.empty()) return FieldError(text.names.messages, "must not be empty");
  if (text.chat.continued) {
    TANDEM_RETURN_IF_ERROR(EndWithLastContent(text, codec, options, prompt.chat));
  }
  if (!text.reasoning) return prompt;
  if (!text.chat.continued) {
    prompt.reasoning = FindReasoningStart(*text.reasoning, prompt.chat.text);
    return prompt;
  }
  // The answer goes on where the message stopped.
  const std::string_view message = *text.chat.continued;
  const size_t begin = message.rfind(text.reasoning->begin);
  const bool is_open =
      begin != message.npos && message.find(text.reasoning->end, begin) == message.npos;
  prompt.reasoning = is_open ? ReasoningStart::kOpen : ReasoningStart::kClosed;
  return prompt;
}

}  // namespace tandem::serve
