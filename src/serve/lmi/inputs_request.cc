#include "serve/lmi/inputs_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "serve/field_reader.h"
#include "serve/lmi/parameters.h"
#include "serve/openai/request/prompts.h"

namespace tandem::serve::lmi {
namespace {

constexpr std::string_view kNoAdapters = "is not supported by this server: it has no adapters";

// The prompts; the schema calls them `inputs`.
Status ReadInputs(const Json* value, InputsCall& call) {
  if (value == nullptr) return FieldError("inputs", "is required");
  if (const std::string* text = value->AsString()) {
    if (text->empty()) return FieldError("inputs", "must not be empty");
    call.inputs.push_back(*text);
    return {};
  }
  const Json::Array* list = value->AsArray();
  if (list == nullptr) {
    return FieldError("inputs", fmt::format("must be a string or an array of strings, not {}",
                                            value->KindName()));
  }
  if (list->empty()) return FieldError("inputs", "must not be empty");
  if (list->size() > openai::kMaxPrompts) {
    return FieldError("inputs", fmt::format("at most {} are allowed", openai::kMaxPrompts));
  }
  call.is_list = true;
  for (const Json& item : *list) {
    const std::string* text = item.AsString();
    if (text == nullptr) {
      return FieldError("inputs", fmt::format("must hold strings, not {}", item.KindName()));
    }
    if (text->empty()) return FieldError("inputs", "must not hold an empty string");
    call.inputs.push_back(*text);
  }
  return {};
}

Status CheckShape(const InputsCall& call) {
  const bool has_many = call.num_generated > 1;
  if (call.stream && has_many) {
    return FieldError("parameters.n", "several answers cannot be streamed");
  }
  if (call.is_list && has_many) {
    return FieldError("parameters.n", "is for one input; a list of inputs gets one answer each");
  }
  return {};
}

}  // namespace

OutputFormatter FormatterOf(std::string_view name) {
  if (name == "json" || name == "json_chat") return OutputFormatter::kJson;
  if (name == "jsonlines" || name == "jsonlines_chat") return OutputFormatter::kJsonLines;
  if (name == "sse" || name == "sse_chat") return OutputFormatter::kSse;
  if (name == "none") return OutputFormatter::kNone;
  return OutputFormatter::kByStream;
}

OutputFormatter ResolveFormatter(OutputFormatter formatter, bool stream, bool tgi_compat) {
  if (formatter != OutputFormatter::kByStream) return formatter;
  if (!stream) return OutputFormatter::kJson;
  return tgi_compat ? OutputFormatter::kSse : OutputFormatter::kJsonLines;
}

int64_t DefaultNewTokens(const Settings& settings) {
  return settings.max_new_tokens.value_or(settings.generation == Generation::k026 ? 128 : 30);
}

Result<InputsCall> ParseInputs(const Json& body, const Settings& settings) {
  InputsCall call;
  FieldReader fields(body);
  TANDEM_RETURN_IF_ERROR(ReadInputs(fields.Get("inputs"), call));
  call.stream = fields.Boolean("stream").value_or(false);
  if (fields.Get("adapters") != nullptr) fields.Fail("adapters", kNoAdapters);
  TANDEM_RETURN_IF_ERROR(fields.status());
  const Json* parameters = fields.Get("parameters");
  const Json none = Json(Json::Object());
  if (parameters == nullptr) parameters = &none;
  if (parameters->AsObject() == nullptr) {
    return FieldError("parameters",
                      fmt::format("must be an object, not {}", parameters->KindName()));
  }
  // Some clients put it there.
  fields.Get("model");
  call.ignored = fields.Unread(kMaxIgnoredParameters);
  TextRequest options;
  TANDEM_RETURN_IF_ERROR(ReadParameters(*parameters, settings, call, options));
  TANDEM_RETURN_IF_ERROR(CheckShape(call));
  options.stream = call.stream || call.formatter == OutputFormatter::kJsonLines ||
                   call.formatter == OutputFormatter::kSse;
  call.stream = options.stream;
  for (const std::string& input : call.inputs) {
    call.prompts.push_back(options);
    call.prompts.back().text = input;
  }
  return call;
}

}  // namespace tandem::serve::lmi
