#include "plan/generation_config.h"

#include <cmath>

#include "base/file.h"
#include "model/json_fields.h"

namespace tandem {
namespace {

std::optional<double> NumberIn(const JsonFields& json, const char* key, double min, double max) {
  if (!json.Has(key)) return std::nullopt;
  const double value = json.Number(key);
  if (value >= min && value <= max) return value;
  json.Fail(key, "is out of range: " + json.Shown(key));
  return std::nullopt;
}

std::optional<int64_t> CountOf(const JsonFields& json, const char* key) {
  if (!json.Has(key)) return std::nullopt;
  const int64_t value = json.Int(key);
  if (value >= 0) return value;
  json.Fail(key, "must not be negative, found " + std::to_string(value));
  return std::nullopt;
}

}  // namespace

Result<GenerationDefaults> GenerationDefaultsFromJson(const std::string& text) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields json, JsonFields::Parse(text));
  constexpr double kMax = 1e6;
  GenerationDefaults defaults;
  if (json.Has("do_sample")) defaults.do_sample = json.Bool("do_sample", false);
  defaults.temperature = NumberIn(json, "temperature", 0.0, kMax);
  defaults.top_k = CountOf(json, "top_k");
  defaults.top_p = NumberIn(json, "top_p", 0.0, 1.0);
  defaults.min_p = NumberIn(json, "min_p", 0.0, 1.0);
  defaults.repetition_penalty = NumberIn(json, "repetition_penalty", 1e-6, kMax);
  defaults.no_repeat_ngram_size = CountOf(json, "no_repeat_ngram_size");
  defaults.max_new_tokens = CountOf(json, "max_new_tokens");
  defaults.min_new_tokens = CountOf(json, "min_new_tokens");
  defaults.eos_ids = json.Ints("eos_token_id");
  defaults.bos_ids = json.Ints("bos_token_id");
  TANDEM_RETURN_IF_ERROR(json.status());
  return defaults;
}

Result<GenerationDefaults> ReadGenerationDefaults(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "generation_config.json";
  const auto text = ReadTextFile(path);
  if (text.status().code() == Code::kNotFound) return GenerationDefaults();
  if (!text.ok()) return text.status();
  auto defaults = GenerationDefaultsFromJson(*text);
  if (!defaults.ok()) return defaults.status().Annotate(path.string());
  return defaults;
}

}  // namespace tandem
