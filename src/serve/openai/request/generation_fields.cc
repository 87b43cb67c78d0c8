#include "serve/openai/request/generation_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "serve/openai/request/prompts.h"

namespace tandem::serve::openai {
namespace {

constexpr double kMaxBias = 100;          // the protocol's own limit of a bias, either way
constexpr size_t kMaxStopTokenIds = 128;  // each takes a place in the slot's list of a device

SamplingFields ReadSampling(FieldReader& fields) {
  SamplingFields sampling;
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    fields.Read(parameter.name, sampling.*members.given);
  });
  return sampling;
}

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

void ReadMaxTokens(FieldReader& fields, TextRequest& text) {
  const std::optional<int64_t> old_name = fields.Integer("max_tokens");
  const std::optional<int64_t> new_name = fields.Integer("max_completion_tokens");
  text.max_tokens = new_name ? new_name : old_name;
  if (new_name) text.names.max_tokens = "max_completion_tokens";
}

// Other servers' levels, of which the lowest runs first and 0 is the default, as a weight in (0, 1)
// that keeps their order.
double WeightOfPriority(int64_t level) {
  const auto distance = std::abs(static_cast<double>(level));
  const double share = 0.5 / (1.0 + distance);
  return level > 0 ? share : 1.0 - share;
}

}  // namespace

void ReadStopTokenIds(FieldReader& fields, TextRequest& text) {
  constexpr std::string_view kName = "stop_token_ids";
  const Json* value = fields.Get(kName);
  if (value == nullptr) return;
  const Json::Array* list = value->AsArray();
  if (list == nullptr) {
    return fields.Fail(kName,
                       fmt::format("must be an array of token ids, not {}", value->KindName()));
  }
  if (list->size() > kMaxStopTokenIds) {
    return fields.Fail(kName, fmt::format("at most {} token ids are allowed", kMaxStopTokenIds));
  }
  if (!ReadTokenIds(*list, text.stop_token_ids)) {
    fields.Fail(kName, "must hold token ids: integers from 0 on");
  }
}

void ReadGenerationFields(FieldReader& fields, TextRequest& text) {
  text.sampling = ReadSampling(fields);
  text.stop = fields.Strings("stop");
  ReadStopTokenIds(fields, text);
  text.bad_words = fields.Strings("bad_words");
  ReadLogitBias(fields, text);
  text.seed = fields.Bits64("seed");
  text.ignore_eos = fields.Boolean("ignore_eos").value_or(false);
  text.skip_special_tokens = fields.Boolean("skip_special_tokens").value_or(true);
  if (fields.Boolean("use_draft") == false) text.max_draft_tokens = 0;
  ReadMaxTokens(fields, text);
  if (const auto level = fields.Integer("priority")) text.priority = WeightOfPriority(*level);
}

}  // namespace tandem::serve::openai
