#include "runtime/request/validate_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/reason.h"
#include "runtime/request/sampling_parameters.h"

namespace tandem {
namespace {

// Above this the arithmetic of penalties overflows; no client can mean such a value.
constexpr float kLargest = 1e6f;
constexpr size_t kMaxSequences = 4096;  // stop or banned sequences, and tokens of one

Status Refuse(std::string_view field, std::string sentence) {
  return InvalidArgument(std::move(sentence)).WithField(field);
}

// A NaN is outside every range.
Status InRange(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return Refuse(field,
                fmt::format("{} must be between {} and {}; it is {}", field, low, high, value));
}

Status TokensInVocabulary(std::string_view field, std::span<const int32_t> tokens, int64_t vocab) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab) {
      return Refuse(field, fmt::format("{} holds token {}; the vocabulary goes from 0 to {}", field,
                                       token, vocab - 1));
    }
  }
  return {};
}

Status TokenSequences(std::string_view field, const std::vector<std::vector<int32_t>>& sequences,
                      int64_t vocab) {
  if (sequences.size() > kMaxSequences) {
    return Refuse(field, fmt::format("{} holds {} sequences; at most {} are allowed", field,
                                     sequences.size(), kMaxSequences));
  }
  for (const std::vector<int32_t>& sequence : sequences) {
    if (sequence.empty() || sequence.size() > kMaxSequences) {
      return Refuse(field, fmt::format("{} holds a sequence of {} tokens; 1 to {} are allowed",
                                       field, sequence.size(), kMaxSequences));
    }
    TANDEM_RETURN_IF_ERROR(TokensInVocabulary(field, sequence, vocab));
  }
  return {};
}

Status Lengths(const Request& request, const EngineLimits& limits) {
  if (request.prompt.empty())
    return Refuse("prompt", "prompt is empty; it needs at least one token");
  if (request.max_tokens < 1) {
    return Refuse("max_tokens",
                  fmt::format("max_tokens must be at least 1; it is {}", request.max_tokens));
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt > limits.max_input_len) {
    return Refuse("prompt",
                  fmt::format("prompt has {} tokens; this server takes at most {} (max_input_len)",
                              prompt, limits.max_input_len))
        .WithReason(Reason::kContextLength);
  }
  if (prompt + request.max_tokens > limits.max_seq_len) {
    return Refuse("max_tokens",
                  fmt::format("prompt has {} tokens and max_tokens is {}, together {}; max_seq_len "
                              "of this server is {}",
                              prompt, request.max_tokens, prompt + request.max_tokens,
                              limits.max_seq_len))
        .WithReason(Reason::kContextLength);
  }
  return TokensInVocabulary("prompt", request.prompt, limits.vocab_size);
}

Status Sampling(const Request& request) {
  const SamplingParams& params = request.sampling;
  Status status;
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    const auto value = params.*members.value;
    if (!status.ok() || parameter.Allows(value)) return;
    status = Refuse(parameter.name, fmt::format("{} must be {}; it is {}", parameter.name,
                                                parameter.AllowedValues(), value));
  });
  TANDEM_RETURN_IF_ERROR(std::move(status));
  TANDEM_RETURN_IF_ERROR(InRange("min_tokens", params.min_tokens, 0, request.max_tokens));
  return InRange("top_logprobs", params.num_top_logprobs, -1, kMaxTopLogprobs);
}

int64_t RowBytes(int64_t vocab) { return vocab * static_cast<int64_t>(sizeof(float)); }

Status LogitBiases(const Request& request, int64_t vocab) {
  if (request.logit_bias.size() > kMaxLogitBias) {
    return Refuse("logit_bias", fmt::format("logit_bias holds {} tokens; at most {} are allowed",
                                            request.logit_bias.size(), kMaxLogitBias));
  }
  for (const LogitBias& bias : request.logit_bias) {
    TANDEM_RETURN_IF_ERROR(TokensInVocabulary("logit_bias", std::span(&bias.token, 1), vocab));
    TANDEM_RETURN_IF_ERROR(InRange("logit_bias", bias.value, -kLargest, kLargest));
  }
  return {};
}

// Every slot of a device has room for the longest legal lists.
Status ListValues(const Request& request) {
  size_t banned = 0;
  for (const std::vector<int32_t>& sequence : request.banned_sequences) banned += sequence.size();
  const size_t values = request.end_ids.size() + 2 * request.logit_bias.size() + banned +
                        request.banned_sequences.size();
  if (values <= kMaxListValues) return {};
  return Refuse("bad_words",
                fmt::format("bad_words holds {} tokens in {} sequences, end_ids {} and logit_bias "
                            "{}: tokens, sequences "
                            "and numbers are together {}; at most {} are allowed",
                            banned, request.banned_sequences.size(), request.end_ids.size(),
                            request.logit_bias.size(), values, kMaxListValues));
}

Status Draft(const Request& request, const EngineLimits& limits) {
  const ExternalDraft& draft = request.draft;
  const auto count = static_cast<int64_t>(draft.tokens.size());
  if (count > limits.max_sent_drafts) {
    return Refuse(
        "draft", fmt::format("draft holds {} tokens; this server verifies at most {} (32, and less "
                             "where max_num_tokens is less than that above max_batch_size)",
                             count, limits.max_sent_drafts));
  }
  TANDEM_RETURN_IF_ERROR(TokensInVocabulary("draft", draft.tokens, limits.vocab_size));
  const auto values = static_cast<int64_t>(draft.logits.size());
  if (values > 0 && values != count * limits.vocab_size) {
    return Refuse("draft.logits",
                  fmt::format("draft.logits holds {} values; {} tokens need {}, {} for each",
                              values, count, count * limits.vocab_size, limits.vocab_size));
  }
  if (draft.threshold.has_value()) {
    TANDEM_RETURN_IF_ERROR(InRange("draft.threshold", double{*draft.threshold}, 0.0, 1.0));
  }
  if (count > 0 && draft.by_probability() && request.constraint != nullptr) {
    const std::string_view field = draft.by_ratio() ? "draft.logits" : "draft.threshold";
    return Refuse(field, fmt::format("{} cannot be combined with a constraint on the output; send "
                                     "the draft's tokens alone",
                                     field));
  }
  return {};
}

// The field that asks for logits, or holds them; empty if there is none.
std::string_view LogitsField(const Request& request) {
  if (request.return_context_logits) return "return_context_logits";
  if (request.return_generation_logits) return "return_generation_logits";
  if (request.num_prompt_logprobs >= 0) return "prompt_logprobs";
  return request.draft.logits.empty() ? "" : "draft.logits";
}

Status Logits(const Request& request, const EngineLimits& limits) {
  const std::string_view field = LogitsField(request);
  if (field.empty()) return {};
  if (limits.max_logits_bytes == 0) {
    return Refuse(field, fmt::format("{}: this server neither returns nor takes logits "
                                     "(max_logits_bytes is 0)",
                                     field));
  }
  const LogitsBytes logits = LogitsBytesOf(request, limits.vocab_size);
  const int64_t bytes = logits.first + (request.num_choices - 1) * logits.other;
  if (bytes <= limits.max_logits_bytes) return {};
  return Refuse(
      field,
      fmt::format("{}: the logits of this request may take {} bytes, {} for each token; this "
                  "server allows {} (max_logits_bytes); ask for fewer tokens",
                  field, bytes, RowBytes(limits.vocab_size), limits.max_logits_bytes));
}

}  // namespace

LogitsBytes LogitsBytesOf(const Request& request, int64_t vocab) {
  const int64_t drawn = request.return_generation_logits ? request.max_tokens : 0;
  const auto context =
      request.return_context_logits ? static_cast<int64_t>(request.prompt.size()) : 0;
  const auto sent = static_cast<int64_t>(request.draft.logits.size() * sizeof(float));
  const auto scored =
      request.num_prompt_logprobs >= 0 ? static_cast<int64_t>(request.prompt.size()) : 0;
  return {.first = (context + drawn) * RowBytes(vocab) + sent +
                   scored * static_cast<int64_t>(sizeof(SampledToken)),
          .other = drawn * RowBytes(vocab)};
}

int32_t NumSentDrafts(const Request& request) {
  auto count = static_cast<int32_t>(request.draft.tokens.size());
  count = std::min(count, request.max_tokens - 1);
  // In token match the target draws an end id itself. The other rules have to judge every draft.
  if (request.draft.by_probability() || request.ignore_eos) return count;
  const auto drafts = std::span(request.draft.tokens).first(static_cast<size_t>(count));
  const auto end = std::ranges::find_first_of(drafts, request.end_ids);
  return static_cast<int32_t>(end - drafts.begin());
}

Status ValidateRequest(const Request& request, const EngineLimits& limits) {
  TANDEM_RETURN_IF_ERROR(Lengths(request, limits));
  TANDEM_RETURN_IF_ERROR(InRange("n", request.num_choices, 1, limits.max_choices));
  TANDEM_RETURN_IF_ERROR(InRange("priority", request.priority, 0.0, 1.0));
  TANDEM_RETURN_IF_ERROR(Sampling(request));
  TANDEM_RETURN_IF_ERROR(
      InRange("prompt_logprobs", request.num_prompt_logprobs, -1, kMaxTopLogprobs));
  TANDEM_RETURN_IF_ERROR(LogitBiases(request, limits.vocab_size));
  TANDEM_RETURN_IF_ERROR(TokensInVocabulary("end_ids", request.end_ids, limits.vocab_size));
  TANDEM_RETURN_IF_ERROR(TokenSequences("stop", request.stop_sequences, limits.vocab_size));
  TANDEM_RETURN_IF_ERROR(TokenSequences("bad_words", request.banned_sequences, limits.vocab_size));
  TANDEM_RETURN_IF_ERROR(Draft(request, limits));
  TANDEM_RETURN_IF_ERROR(Logits(request, limits));
  return ListValues(request);
}

}  // namespace tandem
