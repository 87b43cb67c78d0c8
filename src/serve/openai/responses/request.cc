#include "serve/openai/responses/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/field_reader.h"
#include "serve/openai/request/constraint_fields.h"
#include "serve/openai/request/generation_fields.h"
#include "serve/openai/request/messages.h"
#include "serve/openai/request/other_fields.h"
#include "serve/openai/responses/input.h"

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kLogprobs = "message.output_text.logprobs";
constexpr std::string_view kStateless =
    "is not supported: this server stores no responses; send the whole conversation as input";

// Members that would have to change the answer.
struct RefusedField {
  std::string_view name;
  std::string_view sentence;
};
constexpr RefusedField kRefused[] = {
    {"previous_response_id", kStateless},
    {"conversation", kStateless},
    {"prompt", "is not supported: this server stores no prompts; send instructions and input"},
};

// Members without effect here: the first limits tools that a server runs itself, the second pads
// the events of a stream.
constexpr std::string_view kAccepted[] = {"max_tool_calls", "stream_options"};

void ReadRefused(FieldReader& fields) {
  for (const RefusedField& field : kRefused) {
    if (fields.Get(field.name) != nullptr) fields.Fail(field.name, field.sentence);
  }
  for (const std::string_view name : kAccepted) fields.Get(name);
  if (fields.Boolean("background").value_or(false)) {
    fields.Fail("background", "true is not supported: this server stores no responses");
  }
  const std::optional<std::string> truncation = fields.String("truncation");
  if (truncation && *truncation != "disabled") {
    fields.Fail("truncation",
                "only \"disabled\" is supported: an input that is too long is refused");
  }
}

// What comes back beside the answer; names without effect are appended to `ignored`.
bool ReadInclude(FieldReader& fields, std::vector<std::string>& ignored) {
  bool logprobs = false;
  const Json* include = fields.Get("include");
  if (include == nullptr) return false;
  if (include->AsArray() == nullptr) {
    fields.Fail("include", fmt::format("must be an array, not {}", include->KindName()));
    return false;
  }
  for (const Json& item : *include->AsArray()) {
    if (item.AsString() == nullptr) {
      fields.Fail("include", fmt::format("must hold strings, not {}", item.KindName()));
      break;
    }
    if (*item.AsString() == kLogprobs) {
      logprobs = true;
    } else {
      ignored.push_back("include." + *item.AsString());
    }
  }
  return logprobs;
}

void ReadLogprobs(FieldReader& fields, Call& call, TextRequest& text) {
  call.logprobs = ReadInclude(fields, call.ignored);
  const std::optional<int64_t> top = fields.Integer("top_logprobs");
  if (top && (*top < 0 || *top > kMaxTopLogprobs)) {
    fields.Fail("top_logprobs", "must be an integer from 0 to 20");
  }
  text.num_top_logprobs = call.logprobs ? top.value_or(0) : -1;
}

// The form of the answer, if `text` says one.
const Json* ReadTextFormat(FieldReader& fields, std::vector<std::string>& ignored) {
  const Json* text = fields.Get("text");
  if (text == nullptr) return nullptr;
  if (text->AsObject() == nullptr) {
    fields.Fail("text", fmt::format("must be an object, not {}", text->KindName()));
    return nullptr;
  }
  const FieldReader inner(*text);
  const Json* format = inner.Get("format");
  for (const std::string& name : inner.Unread(kMaxIgnored)) ignored.push_back("text." + name);
  return format;
}

TextRequest ReadOptions(FieldReader& fields, Call& call) {
  TextRequest text;
  text.names.messages = "input";
  call.model = fields.String("model").value_or("");
  call.stream = fields.Boolean("stream").value_or(false);
  text.stream = true;
  ReadLogprobs(fields, call, text);
  ReadRefused(fields);
  ReadGenerationFields(fields, text);
  if (const auto most = fields.Integer("max_output_tokens")) {
    text.max_tokens = most;
    text.names.max_tokens = "max_output_tokens";
  }
  const Json* text_format = ReadTextFormat(fields, call.ignored);
  text.grammar = ReadGrammar(fields, call.ignored, text_format);
  CheckOtherFields(fields);
  return text;
}

}  // namespace

Result<ResponsesCall> ParseResponses(std::string_view body_text) {
  ResponsesCall responses;
  TANDEM_ASSIGN_OR_RETURN(responses.body, ParseBody(body_text));
  const Json& body = responses.body;
  Call& call = responses.call;
  FieldReader fields(body);
  TextRequest text = ReadOptions(fields, call);
  const std::optional<std::string> instructions = fields.String("instructions");
  TANDEM_RETURN_IF_ERROR(fields.status());
  for (const std::string_view name :
       {"tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs"}) {
    fields.Get(name);
  }
  TANDEM_ASSIGN_OR_RETURN(call.tools, ReadTools(body, ToolSpelling::kFlat));
  TANDEM_ASSIGN_OR_RETURN(text.messages, ReadInput(fields.Get("input"), instructions));
  TANDEM_ASSIGN_OR_RETURN(text.chat.variables,
                          ReadTemplateVariables(body, call.tools.for_template));
  call.prompts.push_back(std::move(text));
  std::ranges::move(fields.Unread(kMaxIgnored), std::back_inserter(call.ignored));
  if (call.ignored.size() > kMaxIgnored) call.ignored.resize(kMaxIgnored);
  return responses;
}

}  // namespace tandem::serve::openai
