#include "model/families/own_keys.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "model/families/families.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;
using Pointer = Json::json_pointer;

// Under which the families' code reads the base; in rope_parameters since transformers 5.
constexpr const char* kBaseKeys[] = {"/rope_parameters/rope_theta", "/rope_theta",
                                     "/rotary_emb_base", "/rotary/base", "/rope_local_base_freq"};
// The same of the share of a head that turns.
constexpr const char* kShareKeys[] = {"/rope_parameters/partial_rotary_factor",
                                      "/partial_rotary_factor", "/rotary_pct"};

// The folder's own code reads only keys that its config has; transformers' code reads more.
void SetBase(double base, bool has_own_code, Json& model) {
  bool is_set = false;
  for (const char* key : kBaseKeys) {
    if (!model.contains(Pointer(key))) continue;
    model[Pointer(key)] = base;
    is_set = true;
  }
  if (!is_set && !has_own_code) model["rope_theta"] = base;
}

// The smallest share of which readers, who round down, make `dim`.
double ShareOf(int64_t dim, int64_t head_dim) {
  const auto whole = static_cast<double>(head_dim);
  double share = static_cast<double>(dim) / whole;
  while (static_cast<int64_t>(whole * share) < dim) share = std::nextafter(share, 2.0);
  return share;
}

void SetDim(int64_t dim, int64_t head_dim, Json& model) {
  if (model.contains("rotary_dim")) model["rotary_dim"] = dim;
  for (const char* key : kShareKeys) {
    if (model.contains(Pointer(key))) model[Pointer(key)] = ShareOf(dim, head_dim);
  }
}

void SetScaling(const ConfigOptions& options, bool has_own_code, Json& model) {
  const char* const key = model.contains("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!model.contains(key) && has_own_code) return;
  const Json old = model.contains(key) ? model[key] : Json();
  Json& rope = model[key] = Json::object();
  for (const char* kept : {"rope_theta", "partial_rotary_factor"}) {
    if (old.contains(kept)) rope[kept] = old[kept];
  }
  rope[old.contains("type") ? "type" : "rope_type"] = options.rotary_scaling_type;
  rope["factor"] = options.rotary_scaling_factor;
}

const RopeSpec* RopeOf(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention.rope.dim > 0) return &layer.attention.rope;
  }
  return nullptr;
}

std::string RotaryOptionsOf(const ConfigOptions& options) {
  std::string names;
  const auto add = [&names](std::string_view name, bool given) {
    if (given) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add("--rotary_base", options.rotary_base != 0.0);
  add("--rotary_dim", options.rotary_dim != 0);
  add("--rotary_scaling_type", !options.rotary_scaling_type.empty());
  add("--rotary_scaling_factor", options.rotary_scaling_factor != 0.0);
  return names;
}

}  // namespace

Result<std::string> ConfigWithOptions(const std::string& config_json, const ConfigOptions& options,
                                      const std::string& added_tokens) {
  if (options == ConfigOptions{}) return config_json;
  TANDEM_ASSIGN_OR_RETURN(const ModelSpec wanted,
                          SpecFromHfConfig(config_json, options, added_tokens));
  Json config = Json::parse(config_json);
  const auto set_version = [&config](const char* key, const std::string& version) {
    if (!version.empty()) config[key] = version;
  };
  set_version("baichuan_model_version", options.baichuan_model_version);
  set_version("chatglm_model_version", options.chatglm_model_version);
  set_version("gpt_model_version", options.gpt_model_version);

  const bool has_own_code = config.contains("auto_map");
  const RopeSpec* const rope = RopeOf(wanted);
  if (options.rotary_base != 0.0) SetBase(options.rotary_base, has_own_code, config);
  if (options.rotary_dim != 0) {
    SetDim(options.rotary_dim, wanted.layers.front().attention.head_dim, config);
  }
  const bool scales = !options.rotary_scaling_type.empty();
  if (scales) SetScaling(options, has_own_code, config);
  const auto text = [&config] {
    return config.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  };
  const auto is_wanted = [&] {
    const auto found = SpecFromHfConfig(text(), {}, added_tokens);
    return found.ok() && *found == wanted;
  };
  if (is_wanted()) return text();
  // A context that was stretched otherwise before: linear and dynamic scaling stretch this one.
  if (scales && rope != nullptr && config.contains("max_position_embeddings")) {
    config["max_position_embeddings"] = rope->scaling.original_max_positions;
    if (is_wanted()) return text();
  }
  return Unimplemented(RotaryOptionsOf(options) + ": config.json of " + wanted.architecture +
                       " has no key by which the model's own code does this");
}

}  // namespace tandem
