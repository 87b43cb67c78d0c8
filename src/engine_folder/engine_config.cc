#include "engine_folder/engine_config.h"

#include <nlohmann/json.hpp>

namespace tandem {

std::string ProgramVersion() { return TANDEM_VERSION; }

std::string EngineConfigToJson(const EngineConfig& config) {
  using Json = nlohmann::ordered_json;
  const BuildLimits& limits = config.limits;
  const Json json = {
      {"version", config.version},
      {"pretrained_config", Json::parse(CheckpointConfigToJson(config.checkpoint))},
      {"build_config",
       {{"max_input_len", limits.max_input_len},
        {"max_seq_len", limits.max_seq_len},
        {"max_batch_size", limits.max_batch_size},
        {"max_beam_width", limits.max_beam_width},
        {"max_num_tokens", limits.max_num_tokens},
        {"max_draft_len", limits.max_draft_len},
        {"speculative_decoding_mode", config.speculative_decoding_mode},
        {"kv_cache_type", "PAGED"},
        {"plugin_config", config.recorded}}},
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
  const BuildLimits defaults;
  config.limits = {.max_batch_size = build->Int("max_batch_size", defaults.max_batch_size),
                   .max_input_len = build->Int("max_input_len", defaults.max_input_len),
                   .max_seq_len = build->Int("max_seq_len", defaults.max_seq_len),
                   .max_num_tokens = build->Int("max_num_tokens", defaults.max_num_tokens),
                   .max_beam_width = build->Int("max_beam_width", defaults.max_beam_width),
                   .max_draft_len = build->Int("max_draft_len", defaults.max_draft_len)};
  config.speculative_decoding_mode = build->Text("speculative_decoding_mode", "none");
  TANDEM_RETURN_IF_ERROR(json.status());
  TANDEM_ASSIGN_OR_RETURN(config.limits, SettleLimits(config.limits, config.checkpoint.spec));
  return config;
}

}  // namespace tandem
