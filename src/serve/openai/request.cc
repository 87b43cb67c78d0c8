#include "serve/openai/request.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "serve/field_reader.h"
#include "serve/json.h"
#include "serve/openai/messages.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxPrompts = 128;
constexpr int64_t kDefaultMaxTokens = 16;  // of /v1/completions

SamplingFields ReadSampling(FieldReader& fields) {
  SamplingFields sampling;
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    fields.Read(parameter.name, sampling.*members.given);
  });
  return sampling;
}

std::vector<std::string> ReadStrings(FieldReader& fields, std::string_view name) {
  std::vector<std::string> strings;
  const Json* value = fields.Get(name);
  if (value == nullptr) return strings;
  if (const std::string* one = value->AsString()) {
    if (!one->empty()) strings.push_back(*one);
    return strings;
  }
  const Json::Array* list = value->AsArray();
  if (list == nullptr) {
    fields.Fail(name,
                fmt::format("must be a string or an array of strings, not {}", value->KindName()));
    return strings;
  }
  for (const Json& item : *list) {
    if (item.AsString() == nullptr) {
      fields.Fail(name, fmt::format("must hold strings, not {}", item.KindName()));
      break;
    }
    strings.push_back(*item.AsString());
  }
  return strings;
}

// The protocol's own limit of a bias, either way.
constexpr double kMaxBias = 100;

void ReadLogitBias(FieldReader& fields, TextRequest& text) {
  const Json* value = fields.Get("logit_bias");
  if (value == nullptr) return;
  const Json::Object* members = value->AsObject();
  if (members == nullptr) {
    return fields.Fail("logit_bias", "must be an object from token ids to numbers");
  }
  for (const JsonMember& member : *members) {
    int64_t token = 0;
    const char* end = member.name.data() + member.name.size();
    const auto parsed = std::from_chars(member.name.data(), end, token);
    const std::optional<double> bias = member.value.Number();
    if (parsed.ec != std::errc() || parsed.ptr != end || !bias) {
      return fields.Fail("logit_bias", "must map token ids to numbers");
    }
    if (std::abs(*bias) > kMaxBias) {
      return fields.Fail("logit_bias",
                         fmt::format("must be a number from {0} to {1}", -kMaxBias, kMaxBias));
    }
    text.logit_bias.emplace_back(token, *bias);
  }
}

void RefuseUnsupported(FieldReader& fields) {
  if (const Json* format = fields.Get("response_format")) {
    const Json* type = format->Find("type");
    if (type == nullptr || type->AsString() == nullptr) {
      fields.Fail("response_format", "must be an object with a type");
    } else if (*type->AsString() != "text") {
      fields.Fail("response_format", "only {\"type\":\"text\"} is supported by this server");
    }
  }
  if (const Json* functions = fields.Get("functions")) {
    if (functions->AsArray() == nullptr) {
      fields.Fail("functions", fmt::format("must be an array, not {}", functions->KindName()));
    } else if (!functions->AsArray()->empty()) {
      fields.Fail("functions", "is not supported by this server; send them as tools");
    }
  }
  if (const std::optional<bool> echo = fields.Boolean("echo"); echo && *echo) {
    fields.Fail("echo", "true is not supported by this server");
  }
  if (const std::optional<std::string> suffix = fields.String("suffix");
      suffix && !suffix->empty()) {
    fields.Fail("suffix", "is not supported by this server");
  }
}

void CheckBestOf(FieldReader& fields, int64_t num_choices) {
  const std::optional<int64_t> best_of = fields.Integer("best_of");
  if (best_of && *best_of != 1 && *best_of != num_choices) {
    fields.Fail("best_of", "is not supported by this server; ask for n choices instead");
  }
}

void ReadLogprobs(FieldReader& fields, Call& call, TextRequest& text) {
  if (call.endpoint == Endpoint::kCompletions) {
    const std::optional<int64_t> logprobs = fields.Integer("logprobs");
    call.logprobs = logprobs.has_value();
    if (logprobs && *logprobs < 0) fields.Fail("logprobs", "must be an integer from 0 to 20");
    text.num_top_logprobs = logprobs.value_or(-1);
    return;
  }
  call.logprobs = fields.Boolean("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.Integer("top_logprobs");
  if (top && *top != 0 && !call.logprobs) fields.Fail("top_logprobs", "needs logprobs to be true");
  if (top && (*top < 0 || *top > kMaxTopLogprobs)) {
    fields.Fail("top_logprobs", "must be an integer from 0 to 20");
  }
  text.num_top_logprobs = call.logprobs ? top.value_or(0) : -1;
}

void ReadStreamOptions(FieldReader& fields, Call& call) {
  call.stream = fields.Boolean("stream").value_or(false);
  const Json* options = fields.Get("stream_options");
  if (options == nullptr) return;
  if (options->AsObject() == nullptr) {
    return fields.Fail("stream_options",
                       fmt::format("must be an object, not {}", options->KindName()));
  }
  if (!call.stream) return fields.Fail("stream_options", "is only allowed when stream is true");
  FieldReader inner(*options);
  call.include_usage = inner.Boolean("include_usage").value_or(false);
  call.continuous_usage = inner.Boolean("continuous_usage_stats").value_or(false);
  if (!inner.status().ok()) {
    fields.Fail("stream_options." + inner.status().field(), "must be a boolean");
  }
}

// Everything but the prompt.
TextRequest ReadOptions(FieldReader& fields, Call& call) {
  TextRequest text;
  call.model = fields.String("model").value_or("");
  ReadStreamOptions(fields, call);
  ReadLogprobs(fields, call, text);
  RefuseUnsupported(fields);
  text.sampling = ReadSampling(fields);
  text.stop = ReadStrings(fields, "stop");
  text.bad_words = ReadStrings(fields, "bad_words");
  ReadLogitBias(fields, text);
  text.num_choices = fields.Integer("n").value_or(1);
  CheckBestOf(fields, text.num_choices);
  text.seed = fields.Bits64("seed");
  text.ignore_eos = fields.Boolean("ignore_eos").value_or(false);
  text.skip_special_tokens = fields.Boolean("skip_special_tokens").value_or(true);
  if (fields.Boolean("use_draft") == false) text.max_draft_tokens = 0;
  const std::optional<int64_t> old_name = fields.Integer("max_tokens");
  const std::optional<int64_t> new_name = fields.Integer("max_completion_tokens");
  text.max_tokens = new_name ? new_name : old_name;
  if (new_name) text.names.max_tokens = "max_completion_tokens";
  if (!text.max_tokens && call.endpoint == Endpoint::kCompletions)
    text.max_tokens = kDefaultMaxTokens;
  text.stream = call.stream;
  return text;
}

Status ReadTokenIds(const Json::Array& list, std::vector<int32_t>& tokens) {
  tokens.reserve(list.size());
  for (const Json& item : list) {
    const int64_t* id = item.AsInt();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return FieldError("prompt", "an array must hold strings, token ids, or arrays of token ids");
    }
    tokens.push_back(static_cast<int32_t>(*id));
  }
  return {};
}

// A string, strings, token ids, or arrays of token ids.
Status ReadPrompts(const Json& body, const TextRequest& options,
                   std::vector<TextRequest>& prompts) {
  const Json* prompt = body.Find("prompt");
  if (prompt == nullptr || prompt->is_null()) return FieldError("prompt", "is required");
  if (prompt->AsString() != nullptr) {
    prompts.push_back(options);
    prompts.back().text = *prompt->AsString();
    return {};
  }
  const Json::Array* list = prompt->AsArray();
  if (list == nullptr) {
    return FieldError("prompt",
                      fmt::format("must be a string or an array, not {}", prompt->KindName()));
  }
  if (list->empty()) return FieldError("prompt", "must not be empty");
  if (list->front().is_number()) {
    prompts.push_back(options);
    return ReadTokenIds(*list, prompts.back().tokens.emplace());
  }
  if (list->size() > kMaxPrompts) {
    return FieldError("prompt", fmt::format("at most {} prompts are allowed", kMaxPrompts));
  }
  for (const Json& item : *list) {
    prompts.push_back(options);
    if (item.AsString() != nullptr) {
      prompts.back().text = *item.AsString();
    } else if (item.AsArray() != nullptr) {
      TANDEM_RETURN_IF_ERROR(ReadTokenIds(*item.AsArray(), prompts.back().tokens.emplace()));
    } else {
      return FieldError("prompt", "an array must hold strings, token ids, or arrays of token ids");
    }
  }
  return {};
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
  if (endpoint == Endpoint::kChat) {
    TANDEM_RETURN_IF_ERROR(ReadChat(body, options));
    TANDEM_ASSIGN_OR_RETURN(call.tools, ReadTools(body));
    call.prompts.push_back(std::move(options));
  } else {
    options.continues_prompt = true;
    TANDEM_RETURN_IF_ERROR(ReadPrompts(body, options, call.prompts));
  }
  if (call.prompts.size() > 1 &&
      (num_choices < 1 || num_choices > static_cast<int64_t>(kMaxPrompts / call.prompts.size()))) {
    return FieldError("n", fmt::format("prompts times n must be at most {}", kMaxPrompts));
  }
  return call;
}

}  // namespace tandem::serve::openai
