#include "engine_folder/engine_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace tandem {
namespace {

struct NamedLimit {
  const char* name;
  int64_t BuildLimits::* value;
  int64_t min;
  int64_t max;
};
constexpr std::array kLimits = {
    NamedLimit{"max_input_len", &BuildLimits::max_input_len, 1, int64_t{1} << 30},
    NamedLimit{"max_seq_len", &BuildLimits::max_seq_len, 0, int64_t{1} << 30},
    NamedLimit{"max_batch_size", &BuildLimits::max_batch_size, 1, 1 << 20},
    NamedLimit{"max_beam_width", &BuildLimits::max_beam_width, 1, 1},
    NamedLimit{"max_num_tokens", &BuildLimits::max_num_tokens, 1, int64_t{1} << 30},
    NamedLimit{"max_draft_len", &BuildLimits::max_draft_len, 0, 1024},
};

}  // namespace

Result<BuildLimits> SettleLimits(BuildLimits limits, const ModelSpec& spec) {
  for (const NamedLimit& limit : kLimits) {
    const int64_t value = limits.*limit.value;
    if (value >= limit.min && value <= limit.max) continue;
    return InvalidArgument(std::string(limit.name) + " is " + std::to_string(value) +
                           "; it must be between " + std::to_string(limit.min) + " and " +
                           std::to_string(limit.max));
  }
  const std::optional<DType> cache = limits.kv_cache_dtype;
  if (cache && *cache != DType::kF8E4M3 && *cache != DType::kI8) {
    return InvalidArgument("kv_cache_dtype is " + std::string(DTypeName(*cache)) +
                           "; it must be fp8 or int8");
  }
  if (cache) TANDEM_RETURN_IF_ERROR(CheckCacheScales(spec, *cache));
  if (limits.max_seq_len == 0) limits.max_seq_len = spec.DefaultPositions();
  if (limits.max_seq_len > spec.max_positions) {
    LogWarning("max_seq_len {}: the model has {} positions, which is used", limits.max_seq_len,
               spec.max_positions);
    limits.max_seq_len = spec.max_positions;
  }
  limits.max_input_len = std::min(limits.max_input_len, limits.max_seq_len);
  return limits;
}

std::string ProgramVersion() { return TANDEM_VERSION; }

std::string EngineConfigToJson(const EngineConfig& config) {
  using Json = nlohmann::ordered_json;
  Json build;
  for (const NamedLimit& limit : kLimits) build[limit.name] = config.limits.*limit.value;
  build["speculative_decoding_mode"] = config.speculative_decoding_mode;
  build["kv_cache_type"] = "PAGED";
  const std::optional<DType> cache = config.limits.kv_cache_dtype;
  build["kv_cache_dtype"] = cache ? Json(DTypeName(*cache)) : Json(nullptr);
  build["plugin_config"] = config.recorded;
  const Json json = {
      {"version", config.version},
      {"pretrained_config", Json::parse(CheckpointConfigToJson(config.checkpoint))},
      {"build_config", std::move(build)},
  };
  return json.dump(4, ' ', true, Json::error_handler_t::replace) + "\n";
}

Result<EngineConfig> EngineConfigFromJson(const std::string& text) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields json, JsonFields::Parse(text));
  EngineConfig config;
  config.version = json.Text("version", "unknown");
  const auto pretrained = json.Object("pretrained_config");
  if (!pretrained) json.Fail("pretrained_config", "is missing");
  TANDEM_RETURN_IF_ERROR(json.status());
  TANDEM_ASSIGN_OR_RETURN(config.checkpoint, ReadCheckpointConfig(*pretrained));
  const auto build = json.Object("build_config");
  if (!build) json.Fail("build_config", "is missing");
  TANDEM_RETURN_IF_ERROR(json.status());
  for (const NamedLimit& limit : kLimits) {
    int64_t& value = config.limits.*limit.value;
    value = build->Int(limit.name, value);
  }
  if (build->Has("kv_cache_dtype")) {
    config.limits.kv_cache_dtype = ParseDType(build->Text("kv_cache_dtype"));
  }
  config.speculative_decoding_mode = build->Text("speculative_decoding_mode", "none");
  TANDEM_RETURN_IF_ERROR(json.status());
  TANDEM_ASSIGN_OR_RETURN(config.limits, SettleLimits(config.limits, config.checkpoint.spec));
  return config;
}

}  // namespace tandem
