#include "serve/llgtrt/run_request.h"

#include <fmt/format.h>

#include <memory>

#include "serve/field_reader.h"
#include "serve/json.h"
#include "serve/openai/request/messages.h"

namespace tandem::serve::llgtrt {
namespace {

constexpr std::string_view kController = "llguidance";
constexpr size_t kMaxIgnored = 16;  // names of unknown members that are told

// llguidance's JSON, as an object or its text.
std::shared_ptr<const OutputGrammar> ReadGrammar(FieldReader& fields) {
  const Json* argument = fields.Get("controller_arg");
  const Json* grammar = argument == nullptr ? nullptr : argument->Find("grammar");
  const std::string field = "controller_arg.grammar";
  if (grammar == nullptr || grammar->is_null()) {
    fields.Fail(argument == nullptr ? "controller_arg" : field, "is required");
    return nullptr;
  }
  if (grammar->AsObject() == nullptr && grammar->AsString() == nullptr) {
    fields.Fail(field,
                fmt::format("must be an object or its JSON text, not {}", grammar->KindName()));
    return nullptr;
  }
  const std::string* text = grammar->AsString();
  return std::make_shared<const OutputGrammar>(
      OutputGrammar{.kind = GrammarKind::kGuidance,
                    .text = text == nullptr ? grammar->Dump() : *text,
                    .field = field});
}

// Exactly one of `prompt` and `messages`.
Status ReadPrompt(const Json& body, FieldReader& fields, TextRequest& text) {
  text.text = fields.String("prompt");
  TANDEM_RETURN_IF_ERROR(fields.status());
  const bool has_messages = fields.Get("messages") != nullptr;
  if (text.text && has_messages) return FieldError("messages", "is not allowed beside prompt");
  if (has_messages) return openai::ReadChat(body, Json(), text);
  if (!text.text) return FieldError("prompt", "is required, or messages");
  text.continues_prompt = true;
  return {};
}

}  // namespace

Result<RunCall> ParseRun(std::string_view body_text) {
  TANDEM_ASSIGN_OR_RETURN(const Json body, ParseJson(body_text));
  if (body.AsObject() == nullptr) {
    return InvalidArgument(fmt::format("the body must be a JSON object, not {}", body.KindName()));
  }
  FieldReader fields(body);
  RunCall call;
  call.model = fields.String("model").value_or("");
  if (fields.String("controller").value_or(std::string(kController)) != kController) {
    fields.Fail("controller", fmt::format("must be \"{}\"", kController));
  }
  TextRequest& text = call.text;
  text.stream = true;
  text.grammar = ReadGrammar(fields);
  fields.Read("temperature", text.sampling.temperature);
  fields.Read("top_p", text.sampling.top_p);
  text.max_tokens = fields.Integer("max_tokens");
  TANDEM_RETURN_IF_ERROR(fields.status());
  TANDEM_RETURN_IF_ERROR(ReadPrompt(body, fields, text));
  call.ignored = fields.Unread(kMaxIgnored);
  return call;
}

}  // namespace tandem::serve::llgtrt
