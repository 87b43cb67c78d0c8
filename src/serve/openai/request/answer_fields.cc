#include "serve/openai/request/answer_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::serve::openai {
namespace {

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

// best_of choices are generated, of which the client gets the best n.
void ReadChoices(FieldReader& fields, Call& call, TextRequest& text) {
  call.num_choices = fields.Integer("n").value_or(1);
  // 1 is the protocol's default, which some clients send beside any n.
  const std::optional<int64_t> best_of = fields.Integer("best_of");
  const bool has_best_of = best_of && *best_of != 1;
  call.num_generated = has_best_of ? *best_of : call.num_choices;
  text.num_choices = call.num_generated;
  if (!has_best_of || *best_of == call.num_choices) return;
  text.names.num_choices = "best_of";
  if (*best_of < call.num_choices) {
    return fields.Fail("best_of", fmt::format("must be at least n, which is {}", call.num_choices));
  }
  if (call.num_choices < 1) return fields.Fail("n", "must be at least 1");
  if (call.stream) {
    return fields.Fail("best_of", "cannot be streamed: the best choices are known at the end");
  }
  text.num_top_logprobs = std::max<int64_t>(text.num_top_logprobs, 0);  // they decide
}

void ReadEcho(FieldReader& fields, Call& call, TextRequest& text) {
  call.echo.prompt = fields.Boolean("echo").value_or(false);
  if (call.echo.prompt && call.endpoint == Endpoint::kChat) {
    return fields.Fail("echo",
                       "true is for /v1/completions; a chat's prompt has no text of its own");
  }
  const std::optional<int64_t> prompt_logprobs = fields.Integer("prompt_logprobs");
  call.echo.num_prompt_logprobs = prompt_logprobs.value_or(-1);
  if (prompt_logprobs && (*prompt_logprobs < 0 || *prompt_logprobs > kMaxTopLogprobs)) {
    return fields.Fail("prompt_logprobs", "must be an integer from 0 to 20");
  }
  if (prompt_logprobs && call.stream) {
    return fields.Fail("prompt_logprobs", "cannot be streamed; use echo and logprobs");
  }
  text.num_prompt_logprobs = call.echo.num_prompt_logprobs;
  if (call.echo.prompt && call.logprobs) {
    text.num_prompt_logprobs = std::max(text.num_prompt_logprobs, text.num_top_logprobs);
  }
  text.return_prompt = call.echo.prompt || text.num_prompt_logprobs >= 0;
}

}  // namespace

void ReadAnswerFields(FieldReader& fields, Call& call, TextRequest& text) {
  ReadStreamOptions(fields, call);
  ReadLogprobs(fields, call, text);
  ReadEcho(fields, call, text);
  ReadChoices(fields, call, text);
  text.stream = call.stream;
}

}  // namespace tandem::serve::openai
