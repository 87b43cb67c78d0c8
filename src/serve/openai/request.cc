#include "serve/openai/request.h"

#include <fmt/format.h>

#include <utility>

#include "serve/field_reader.h"
#include "serve/json.h"
#include "serve/openai/answer_fields.h"
#include "serve/openai/constraint_fields.h"
#include "serve/openai/generation_fields.h"
#include "serve/openai/other_fields.h"
#include "serve/openai/prompts.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxMessages = 4096;
constexpr int64_t kDefaultMaxTokens = 16;  // of /v1/completions
constexpr size_t kMaxIgnored = 16;         // names of unknown members that are told

void RefuseUnsupported(FieldReader& fields) {
  for (const std::string_view name : {"tools", "functions"}) {
    const Json* tools = fields.Get(name);
    if (tools == nullptr) continue;
    if (tools->AsArray() == nullptr) {
      fields.Fail(name, fmt::format("must be an array, not {}", tools->KindName()));
    } else if (!tools->AsArray()->empty()) {
      fields.Fail(name, "tools are not supported by this server");
    }
  }
}

// Without new tokens there is still a prompt to score: one is drawn and not shown.
void ScoreOnly(Call& call, TextRequest& text) {
  call.echo.answer = false;
  text.max_tokens = 1;
}

void ReadSpecialTokens(FieldReader& fields, const Call& call, TextRequest& text) {
  const bool is_chat = call.endpoint == Endpoint::kChat;
  const bool adds = fields.Boolean("add_special_tokens").value_or(!is_chat);
  if (is_chat && adds) {
    fields.Fail("add_special_tokens", "true is not supported: the chat template writes them");
  }
  text.add_special_tokens = adds;
}

// Everything but the prompt.
TextRequest ReadOptions(FieldReader& fields, Call& call) {
  TextRequest text;
  call.model = fields.String("model").value_or("");
  ReadAnswerFields(fields, call, text);
  RefuseUnsupported(fields);
  ReadGenerationFields(fields, text);
  text.grammar = ReadGrammar(fields);
  CheckOtherFields(fields);
  ReadSpecialTokens(fields, call, text);
  const bool is_completion = call.endpoint == Endpoint::kCompletions;
  if (!text.max_tokens && is_completion) text.max_tokens = kDefaultMaxTokens;
  if (text.max_tokens == 0 && text.return_prompt && is_completion) ScoreOnly(call, text);
  return text;
}

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

// The messages as the chat template wants them: {role, content} with content a string.
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

}  // namespace

Result<Call> ParseCall(Endpoint endpoint, std::string_view body_text) {
  TANDEM_ASSIGN_OR_RETURN(const Json body, ParseJson(body_text));
  if (body.AsObject() == nullptr) {
    return InvalidArgument(fmt::format("the body must be a JSON object, not {}", body.KindName()));
  }
  Call call;
  call.endpoint = endpoint;
  FieldReader fields(body);
  TextRequest options = ReadOptions(fields, call);
  TANDEM_RETURN_IF_ERROR(fields.status());
  const int64_t num_choices = options.num_choices;
  const std::string choices_name(options.names.num_choices);
  if (endpoint == Endpoint::kChat) {
    fields.Get("messages");
    TANDEM_ASSIGN_OR_RETURN(options.messages, ReadMessages(body));
    call.prompts.push_back(std::move(options));
  } else {
    options.continues_prompt = true;
    TANDEM_RETURN_IF_ERROR(ReadPrompts(fields.Get("prompt"), options, call.prompts));
  }
  if (call.prompts.size() > 1 &&
      (num_choices < 1 || num_choices > static_cast<int64_t>(kMaxPrompts / call.prompts.size()))) {
    return FieldError(choices_name, fmt::format("prompts times {} must be at most {}", choices_name,
                                                kMaxPrompts));
  }
  call.ignored = fields.Unread(kMaxIgnored);
  return call;
}

}  // namespace tandem::serve::openai
