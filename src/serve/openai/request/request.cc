#include "serve/openai/request/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "serve/field_reader.h"
#include "serve/json.h"
#include "serve/openai/request/answer_fields.h"
#include "serve/openai/request/constraint_fields.h"
#include "serve/openai/request/generation_fields.h"
#include "serve/openai/request/llgtrt_fields.h"
#include "serve/openai/request/messages.h"
#include "serve/openai/request/other_fields.h"
#include "serve/openai/request/prompts.h"

namespace tandem::serve::openai {
namespace {

// What ReadChat and ReadTools read, so that they are no unknown members.
constexpr std::string_view kChatFields[] = {"messages",
                                            "tools",
                                            "tool_choice",
                                            "parallel_tool_calls",
                                            "chat_template_kwargs",
                                            "add_generation_prompt",
                                            "continue_final_message"};
constexpr int64_t kDefaultMaxTokens = 16;  // of /v1/completions

void RefuseUnsupported(FieldReader& fields) {
  if (const Json* functions = fields.Get("functions")) {
    if (functions->AsArray() == nullptr) {
      fields.Fail("functions", fmt::format("must be an array, not {}", functions->KindName()));
    } else if (!functions->AsArray()->empty()) {
      fields.Fail("functions", "is not supported by this server; send them as tools");
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
  text.grammar = ReadGrammar(fields, call.ignored);
  CheckOtherFields(fields);
  ReadLlgtrtFields(fields, call, text);
  ReadSpecialTokens(fields, call, text);
  const bool is_completion = call.endpoint == Endpoint::kCompletions;
  if (is_completion) text.default_max_tokens = kDefaultMaxTokens;
  if (text.max_tokens == 0 && text.return_prompt && is_completion) ScoreOnly(call, text);
  return text;
}

}  // namespace

Result<Json> ParseBody(std::string_view text) {
  TANDEM_ASSIGN_OR_RETURN(Json body, ParseJson(text));
  if (body.AsObject() != nullptr) return body;
  return InvalidArgument(fmt::format("the body must be a JSON object, not {}", body.KindName()));
}

Result<Call> ParseCall(Endpoint endpoint, std::string_view body_text) {
  TANDEM_ASSIGN_OR_RETURN(const Json body, ParseBody(body_text));
  Call call;
  call.endpoint = endpoint;
  FieldReader fields(body);
  TextRequest options = ReadOptions(fields, call);
  TANDEM_RETURN_IF_ERROR(fields.status());
  const int64_t num_choices = options.num_choices;
  const std::string choices_name(options.names.num_choices);
  if (endpoint == Endpoint::kChat) {
    for (const std::string_view name : kChatFields) fields.Get(name);
    TANDEM_ASSIGN_OR_RETURN(call.tools, ReadTools(body, ToolSpelling::kNested));
    TANDEM_RETURN_IF_ERROR(ReadChat(body, call.tools.for_template, options));
    TANDEM_RETURN_IF_ERROR(ShowSchemaInPrompt(body, options));
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
  if (call.echo.expanded && call.prompts.size() > 1) {
    return FieldError("return_expanded_prompt", "needs a request with one prompt");
  }
  std::ranges::move(fields.Unread(kMaxIgnored), std::back_inserter(call.ignored));
  if (call.ignored.size() > kMaxIgnored) call.ignored.resize(kMaxIgnored);
  return call;
}

}  // namespace tandem::serve::openai
