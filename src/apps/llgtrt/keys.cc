#include "apps/llgtrt/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "apps/models/grammar_options.h"
#include "runtime/option_rows.h"
#include "serve/openai/answers/answer_format.h"

namespace tandem::apps {
namespace {

using serve::Json;
using Take = decltype(LlgtrtKey::take);

Status MustBe(std::string_view what, const Json& value) {
  return InvalidArgument(fmt::format("must be {}, not {}", what, value.KindName()));
}

// An integer, also as 1e6.
std::optional<int64_t> IntegerOf(const Json& value) {
  if (const int64_t* number = value.AsInt()) return *number;
  const double* number = value.AsDouble();
  constexpr double kMost = 9e15;  // doubles below it are exact
  if (number == nullptr || *number != std::trunc(*number) || std::abs(*number) > kMost) return {};
  return static_cast<int64_t>(*number);
}

// ---- Options of the engine ----

template <auto kField>
std::string OptionOf() {
  return std::string(EngineOptionRows().RowOf<kField>().name);
}

template <auto kField>
LlgtrtKey Switch(std::string_view path, std::string_view default_json, std::string_view meaning) {
  return {path, default_json, meaning, [](const Json& value, LlgtrtSettings& settings) -> Status {
            if (value.AsBool() == nullptr) return MustBe("true or false", value);
            settings.options[OptionOf<kField>()] = *value.AsBool() ? "true" : "false";
            return {};
          }};
}

template <auto kField>
LlgtrtKey Integer(std::string_view path, std::string_view default_json, std::string_view meaning) {
  return {path, default_json, meaning, [](const Json& value, LlgtrtSettings& settings) -> Status {
            const std::optional<int64_t> number = IntegerOf(value);
            if (!number) return MustBe("an integer", value);
            settings.options[OptionOf<kField>()] = std::to_string(*number);
            return {};
          }};
}

Status TakePolicy(const Json& value, LlgtrtSettings& settings) {
  if (value.AsBool() == nullptr) return MustBe("true or false", value);
  settings.options[OptionOf<&EngineOptions::policy>()] =
      *value.AsBool() ? "guaranteed_no_evict" : "max_utilization";
  return {};
}

// 0 had no limit there; a server that never refuses runs out of memory, so the built-in bound
// stays.
Status TakeQueueSize(const Json& value, LlgtrtSettings& settings) {
  if (value.is_null()) return {};
  const std::optional<int64_t> number = IntegerOf(value);
  if (!number) return MustBe("an integer or null", value);
  if (*number != 0)
    settings.options[OptionOf<&EngineOptions::max_queue_size>()] = std::to_string(*number);
  return {};
}

// Null: the default.
template <auto kField>
LlgtrtKey IntegerOrNull(std::string_view path, std::string_view default_json,
                        std::string_view meaning) {
  LlgtrtKey key = Integer<kField>(path, default_json, meaning);
  key.take = [take = key.take](const Json& value, LlgtrtSettings& settings) -> Status {
    return value.is_null() ? Status() : take(value, settings);
  };
  return key;
}

Status TakeHostMemory(const Json& value, LlgtrtSettings& settings) {
  const std::optional<int64_t> mebibytes = IntegerOf(value);
  if (!mebibytes) return MustBe("an integer", value);
  settings.options[OptionOf<&EngineOptions::kv_host_cache_bytes>()] =
      fmt::format("{}MiB", *mebibytes);
  return {};
}

Status TakeFraction(const Json& value, LlgtrtSettings& settings) {
  const std::optional<double> number = value.Number();
  if (!number) return MustBe("a number", value);
  settings.options[OptionOf<&EngineOptions::kv_cache_free_fraction>()] = fmt::format("{}", *number);
  return {};
}

// ---- Keys without an option ----

// Accepts null and `neutral` alone.
LlgtrtKey Only(std::string_view path, std::string_view neutral, std::string_view meaning,
               std::string_view refusal) {
  return {path, neutral, meaning, [neutral, refusal](const Json& value, LlgtrtSettings&) -> Status {
            if (value.is_null() || value.Dump() == neutral) return {};
            return InvalidArgument(fmt::format("{} {}", value.Dump(), refusal));
          }};
}

template <auto kField>
LlgtrtKey GrammarLimit(std::string_view path, std::string_view default_json,
                       std::string_view meaning) {
  return {path, default_json, meaning, [](const Json& value, LlgtrtSettings& settings) -> Status {
            const std::optional<int64_t> number = IntegerOf(value);
            if (!number) return MustBe("an integer", value);
            settings.options[std::string(GrammarRows().RowOf<kField>().name)] =
                std::to_string(*number);
            return {};
          }};
}

LlgtrtKey Plugin(std::string_view path) {
  return {path, "", "Plug-ins in Python are not run",
          [](const Json& value, LlgtrtSettings&) -> Status {
            const bool is_empty = value.AsObject() != nullptr && value.AsObject()->empty();
            if (value.is_null() || is_empty) return {};
            return InvalidArgument(
                "is not supported: this server runs no Python, and serves text alone");
          }};
}

// ---- Tokenizer ----

void PutMember(std::string_view name, const Json& value, LlgtrtSettings& settings) {
  settings.tokenizer_config.push_back({std::string(name), value});
}

LlgtrtKey SpecialToken(std::string_view path, std::string_view meaning) {
  return {path, "", meaning, [path](const Json& value, LlgtrtSettings& settings) -> Status {
            const Json* content = value.AsObject() == nullptr ? &value : value.Find("content");
            const bool is_text = content != nullptr && content->AsString() != nullptr;
            if (!value.is_null() && !is_text) {
              return MustBe("a string, an object with a content, or null", value);
            }
            PutMember(path.substr(path.rfind('.') + 1), value, settings);
            return {};
          }};
}

Status TakeChatTemplate(const Json& value, LlgtrtSettings& settings) {
  if (value.is_null()) return {};
  if (value.AsString() == nullptr && value.AsArray() == nullptr) {
    return MustBe("a string, or an array of {name, template}", value);
  }
  PutMember("chat_template", value, settings);
  return {};
}

Status TakeCleanUp(const Json& value, LlgtrtSettings&) {
  if (value.is_null() || value.AsBool() != nullptr) return {};
  return MustBe("true or false", value);
}

// The token that opens a tool call selects the format of calls.
Status TakeJsonStart(const Json& value, LlgtrtSettings& settings) {
  if (value.is_null()) return {};
  if (value.AsString() == nullptr) return MustBe("a string or null", value);
  std::string known;
  for (const serve::openai::ToolFormat& format : serve::openai::ToolFormats()) {
    if (format.begin == *value.AsString()) {
      settings.options["tool_format"] = format.name;
      return {};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format.begin);
  }
  return InvalidArgument(
      fmt::format("\"{}\" opens no form of tool calls that is known here: these are {}",
                  *value.AsString(), known));
}

Status TakeVocabulary(const Json& value, LlgtrtSettings& settings) {
  if (value.is_null()) return {};
  const std::optional<int64_t> number = IntegerOf(value);
  if (!number || *number < 1) return MustBe("an integer from 1 on, or null", value);
  settings.n_vocab = number;
  return {};
}

}  // namespace

std::span<const LlgtrtKey> LlgtrtKeys() {
  static const std::vector<LlgtrtKey> keys = {
      {"runtime.guaranteed_no_evict", "false",
       "Reserve memory for the longest output, so that a running request is never paused",
       TakePolicy},
      Integer<&EngineOptions::max_batch_size>("runtime.max_batch_size", "128",
                                              "Sequences that run in one step"),
      Integer<&EngineOptions::max_num_tokens>("runtime.max_num_tokens", "8192",
                                              "Tokens computed in one step"),
      {"runtime.max_queue_size", "0", "Waiting requests; 0: the built-in bound", TakeQueueSize},
      Switch<&EngineOptions::enable_chunked_prefill>("runtime.enable_chunked_context", "true",
                                                     "Split long prompts over several steps"),
      Switch<&EngineOptions::enable_prefix_reuse>("runtime.enable_kv_cache_reuse", "true",
                                                  "Reuse the cache of shared prefixes"),
      {"runtime.kv_cache_free_gpu_mem_fraction", "",
       "Share of the free memory for keys and values of both models", TakeFraction},
      {"runtime.kv_cache_host_memory_megabytes", "0",
       "Host memory for evicted keys and values, in MiB", TakeHostMemory},
      Switch<&EngineOptions::enable_batch_size_tuning>(
          "runtime.enable_batch_size_tuning", "true",
          "Bound the sequences of a step by the lengths of recent requests"),
      Switch<&EngineOptions::enable_max_num_tokens_tuning>(
          "runtime.enable_max_num_tokens_tuning", "true",
          "Bound the tokens of a step by the lengths of recent requests"),
      Switch<&EngineOptions::kv_onboard_blocks>("runtime.kv_cache_onboard_blocks", "true",
                                                "Bring keys and values back from host memory"),
      Only("runtime.cross_kv_cache_fraction", "null", "Of encoder-decoder models",
           "is for encoder-decoder models, of which none is served"),
      IntegerOrNull<&EngineOptions::kv_offload_min_priority>(
          "runtime.secondary_offload_min_priority", "30",
          "Least priority of what goes to host memory"),
      IntegerOrNull<&EngineOptions::kv_event_buffer>("runtime.event_buffer_max_size", "0",
                                                     "Events of the cache that are kept"),
      {"tokenizer.chat_template", "", "Template of chats", TakeChatTemplate},
      {"tokenizer.clean_up_tokenization_spaces", "", "No effect: text is the tokens' bytes",
       TakeCleanUp},
      SpecialToken("tokenizer.bos_token", "Begins every text; null: nothing does"),
      SpecialToken("tokenizer.eos_token", "Ends an answer, besides the model's own ends"),
      SpecialToken("tokenizer.unk_token", "For the chat template"),
      SpecialToken("tokenizer.sep_token", "For the chat template"),
      SpecialToken("tokenizer.pad_token", "For the chat template"),
      SpecialToken("tokenizer.cls_token", "For the chat template"),
      SpecialToken("tokenizer.mask_token", "For the chat template"),
      {"tokenizer.json_start_token", "null", "Opens a tool call", TakeJsonStart},
      {"tokenizer.n_vocab_override", "null", "Compared with the model, which tells it itself",
       TakeVocabulary},
      GrammarLimit<&GrammarLimits::max_items_in_row>("llguidance.limits.max_items_in_row", "2000",
                                                     "Branches of an unambiguous grammar"),
      GrammarLimit<&GrammarLimits::initial_lexer_fuel>(
          "llguidance.limits.initial_lexer_fuel", "1000000", "Regex nodes of compiling a grammar"),
      GrammarLimit<&GrammarLimits::step_lexer_fuel>("llguidance.limits.step_lexer_fuel", "200000",
                                                    "Regex nodes of a mask"),
      GrammarLimit<&GrammarLimits::step_max_items>("llguidance.limits.step_max_items", "50000",
                                                   "Parser items of a mask"),
      GrammarLimit<&GrammarLimits::max_lexer_states>("llguidance.limits.max_lexer_states", "250000",
                                                     "States of a grammar's lexer"),
      GrammarLimit<&GrammarLimits::max_grammar_size>("llguidance.limits.max_grammar_size", "500000",
                                                     "Symbols in rules"),
      GrammarLimit<&GrammarLimits::log_level>("llguidance.log_level", "1",
                                              "What llguidance writes to the standard error"),
      Plugin("py.input_processor"),
      Plugin("py.hf_model_dir"),
      Plugin("py.visual_engine_dir"),
      Plugin("py.arguments"),
  };
  return keys;
}

}  // namespace tandem::apps
