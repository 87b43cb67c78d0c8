#include "serve/lmi/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/field_reader.h"
#include "serve/openai/request/constraint_fields.h"
#include "serve/openai/request/generation_fields.h"

namespace tandem::serve::lmi {
namespace {

// What would have to change the answer, and cannot.
struct RefusedFlag {
  std::string_view name;
  std::string_view refusal;
};
constexpr RefusedFlag kRefusedFlags[] = {
    {"use_beam_search", "true is not supported: there is no beam search"},
    {"include_stop_str_in_output", "true is not supported by this server"},
};
constexpr std::string_view kAdapters[] = {"adapters", "adapter_id"};
// Accepted, because no value of them can change an answer here: there is no beam search, and tokens
// always have their log-probability.
constexpr std::string_view kWithoutEffect[] = {"length_penalty", "len_penalty",
                                               "early_stopping", "spaces_between_special_tokens",
                                               "logprobs",       "streaming"};

// The first of several names that is there.
template <typename Value>
std::optional<Value> FirstOf(FieldReader& fields, std::initializer_list<std::string_view> names,
                             std::string_view* used = nullptr) {
  std::optional<Value> first;
  for (const std::string_view name : names) {
    std::optional<Value> value;
    fields.Read(name, value);
    if (!value || first) continue;
    first = value;
    if (used != nullptr) *used = name;
  }
  return first;
}

void ReadSampling(FieldReader& fields, TextRequest& options) {
  SamplingFields& sampling = options.sampling;
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    fields.Read(parameter.name, sampling.*members.given);
  });
  if (const auto top_k = FirstOf<int64_t>(fields, {"runtime_top_k"})) sampling.top_k = top_k;
  if (const auto top_p = FirstOf<double>(fields, {"runtime_top_p"})) sampling.top_p = top_p;
  if (const auto least =
          FirstOf<int64_t>(fields, {"min_length", "min_new_tokens"}, &options.names.min_tokens)) {
    sampling.min_tokens = least;
  }
}

// Whether tokens are drawn or the likeliest ones taken, as the release's handler decides.
void DecideSampling(FieldReader& fields, const Settings& settings, TextRequest& options) {
  SamplingFields& sampling = options.sampling;
  const std::optional<bool> asked = fields.Boolean("do_sample");
  options.defaults = SamplingDefaults::kGreedy;  // unless top_k or top_p is set
  // text-generation-inference takes a temperature for a wish to sample, and 0.34 the lack of one.
  const bool implied = settings.generation == Generation::k034 ||
                       (settings.tgi_compat && sampling.temperature.has_value());
  const bool by_handler = settings.generation != Generation::k034 && settings.trtllm_sampling;
  if (asked.value_or(implied)) {
    if (by_handler && asked) {
      if (!sampling.temperature) sampling.temperature = 0.8;
      if (!sampling.top_k) sampling.top_k = 5;
      if (!sampling.top_p) sampling.top_p = 0.85;
    } else if (!sampling.top_p) {
      sampling.top_p = 1.0;
    }
    return;
  }
  // TensorRT-LLM's own rule: top_k or top_p alone ask for it too.
  if (!by_handler) sampling.temperature = 0.0;
}

// An integer, or its digits in a string.
void ReadSeed(FieldReader& fields, TextRequest& options) {
  for (const std::string_view name : {"seed", "random_seed"}) {
    const Json* value = fields.Get(name);
    const std::string* text = value == nullptr ? nullptr : value->AsString();
    if (text == nullptr) {
      if (const auto seed = fields.Bits64(name)) options.seed = seed;
      continue;
    }
    uint64_t seed = 0;
    const char* const end = text->data() + text->size();
    const auto read = std::from_chars(text->data(), end, seed);
    if (read.ec != std::errc() || read.ptr != end) fields.Fail(name, "must be an integer");
    options.seed = seed;
  }
}

void ReadWords(FieldReader& fields, InputsCall& call, TextRequest& options) {
  for (const std::string_view name : {"stop_sequences", "stop", "stop_words"}) {
    // One release's documentation calls `stop` a boolean.
    const Json* value = fields.Get(name);
    if (value != nullptr && value->AsBool() != nullptr) {
      call.ignored.emplace_back(name);
      continue;
    }
    std::vector<std::string> words = fields.Strings(name);
    if (words.empty()) continue;
    options.names.stop = name;
    std::ranges::move(words, std::back_inserter(options.stop));
  }
  for (const std::string_view name : {"bad_sequences", "bad_words"}) {
    std::ranges::move(fields.Strings(name), std::back_inserter(options.bad_words));
  }
  openai::ReadStopTokenIds(fields, options);
}

void ReadLengths(FieldReader& fields, const Settings& settings, TextRequest& options) {
  options.max_tokens = FirstOf<int64_t>(
      fields, {"max_new_tokens", "max_tokens", "request_output_len"}, &options.names.max_tokens);
  options.default_max_tokens = DefaultNewTokens(settings);
  options.keep_prompt_tokens = fields.Integer("truncate");
  if (options.keep_prompt_tokens && *options.keep_prompt_tokens < 1) {
    fields.Fail("truncate", "must be at least 1");
  }
  const auto ignores_end = fields.Boolean("ignore_eos_token");
  options.ignore_eos = fields.Boolean("ignore_eos").value_or(ignores_end.value_or(false));
}

// best_of sequences are generated, of which the client gets the best n.
void ReadChoices(FieldReader& fields, InputsCall& call, TextRequest& options) {
  const std::optional<int64_t> n = FirstOf<int64_t>(fields, {"n", "num_return_sequences"});
  const std::optional<int64_t> best_of = fields.Integer("best_of");
  call.num_choices = n.value_or(best_of.value_or(1));
  call.num_generated = std::max(best_of.value_or(1), call.num_choices);
  if (best_of && *best_of < 1) fields.Fail("best_of", "must be at least 1");
  if (call.num_choices < 1) fields.Fail("n", "must be at least 1");
  if (best_of.value_or(1) > 1) options.names.num_choices = "best_of";
  options.num_choices = call.num_generated;
  if (fields.Integer("num_beams").value_or(1) > 1) {
    fields.Fail("num_beams", "above 1 is not supported: there is no beam search");
  }
}

// text-generation-inference's {"type": "json", "value": SCHEMA} or "regex".
std::shared_ptr<const OutputGrammar> ReadTgiGrammar(FieldReader& fields) {
  const Json* grammar = fields.Get("grammar");
  if (grammar == nullptr) return nullptr;
  const Json* type = grammar->Find("type");
  const Json* value = grammar->Find("value");
  const std::string name =
      type == nullptr || type->AsString() == nullptr ? std::string() : *type->AsString();
  const bool is_json = name == "json" || name == "json_object" || name == "json_schema";
  const std::string* text = value == nullptr ? nullptr : value->AsString();
  if (value == nullptr || !(is_json || (name == "regex" && text != nullptr))) {
    fields.Fail("grammar", R"(must be {"type": "json", "value": SCHEMA} or )"
                           R"({"type": "regex", "value": "..."})");
    return nullptr;
  }
  return std::make_shared<const OutputGrammar>(
      OutputGrammar{.kind = is_json ? GrammarKind::kJsonSchema : GrammarKind::kRegex,
                    .text = text == nullptr ? value->Dump() : *text,
                    .field = "grammar"});
}

void ReadGrammar(FieldReader& fields, InputsCall& call, TextRequest& options) {
  options.grammar = openai::ReadGrammar(fields, call.ignored);
  std::shared_ptr<const OutputGrammar> tgi = ReadTgiGrammar(fields);
  if (tgi == nullptr) return;
  if (options.grammar != nullptr) {
    return fields.Fail("grammar", "is not allowed beside another member that says the same");
  }
  options.grammar = std::move(tgi);
}

// How the answer is written, and what has to be known for it.
void ReadShape(FieldReader& fields, const Settings& settings, InputsCall& call,
               TextRequest& options) {
  const std::optional<std::string> named = fields.String("output_formatter");
  OutputFormatter formatter = named ? FormatterOf(*named) : settings.output_formatter;
  if (named && formatter == OutputFormatter::kByStream) {
    call.ignored.emplace_back("output_formatter");
    formatter = settings.output_formatter;
  }
  const bool has_many = call.num_generated > 1;
  call.formatter = has_many ? OutputFormatter::kJson
                            : ResolveFormatter(formatter, call.stream, settings.tgi_compat);
  call.details = fields.Boolean("details").value_or(settings.tgi_compat) || has_many;
  call.prefill = fields.Boolean("decoder_input_details").value_or(false) && call.details;
  call.full_text = fields.Boolean("return_full_text").value_or(false);
  call.top_tokens = fields.Integer("top_n_tokens").value_or(0);
  if (call.top_tokens < 0 || call.top_tokens > kMaxTopLogprobs) {
    fields.Fail("top_n_tokens", fmt::format("must be an integer from 0 to {}", kMaxTopLogprobs));
  }
  const bool is_stream =
      call.formatter == OutputFormatter::kJsonLines || call.formatter == OutputFormatter::kSse;
  const bool shows_tokens = !call.is_list && (is_stream || call.details);
  if (shows_tokens) options.num_top_logprobs = call.top_tokens;
  if (has_many) options.num_top_logprobs = std::max<int64_t>(options.num_top_logprobs, 0);
  options.return_prompt = call.prefill;
  if (call.prefill) options.num_prompt_logprobs = 0;
}

void RefuseOthers(FieldReader& fields) {
  for (const RefusedFlag& flag : kRefusedFlags) {
    if (fields.Boolean(flag.name).value_or(false)) fields.Fail(flag.name, flag.refusal);
  }
  for (const std::string_view name : kAdapters) {
    if (fields.Get(name) != nullptr) {
      fields.Fail(name, "is not supported by this server: it has no adapters");
    }
  }
  for (const std::string_view name : kWithoutEffect) fields.Get(name);
}

}  // namespace

Status ReadParameters(const Json& parameters, const Settings& settings, InputsCall& call,
                      TextRequest& options) {
  FieldReader fields(parameters);
  options.names.prompt = "inputs";
  options.continues_prompt = true;
  ReadSampling(fields, options);
  DecideSampling(fields, settings, options);
  ReadSeed(fields, options);
  ReadWords(fields, call, options);
  ReadLengths(fields, settings, options);
  ReadChoices(fields, call, options);
  ReadGrammar(fields, call, options);
  ReadShape(fields, settings, call, options);
  RefuseOthers(fields);
  options.skip_special_tokens = fields.Boolean("skip_special_tokens").value_or(true);
  if (fields.Boolean("use_draft") == false) options.max_draft_tokens = 0;
  TANDEM_RETURN_IF_ERROR(fields.status());
  std::ranges::move(fields.Unread(kMaxIgnoredParameters), std::back_inserter(call.ignored));
  if (call.ignored.size() > kMaxIgnoredParameters) call.ignored.resize(kMaxIgnoredParameters);
  return {};
}

}  // namespace tandem::serve::lmi
