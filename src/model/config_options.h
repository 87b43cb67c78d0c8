// ConfigOptions: what a person says of a Hugging Face folder that its config.json leaves open, or
// otherwise than that file. Each member acts as the key of its name in config.json, over which it
// goes. A plain value.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

struct ConfigOptions {
  // Of the layers that have rotary positions; 0 or empty: as the config says.
  double rotary_base = 0.0;
  int64_t rotary_dim = 0;
  std::string rotary_scaling_type = {};  // linear or dynamic
  double rotary_scaling_factor = 0.0;    // goes with the type
  // Which model of a family it is: v2_13b, chatglm3_6b_32k, santacoder.
  std::string baichuan_model_version = {};
  std::string chatglm_model_version = {};
  std::string gpt_model_version = {};
  bool operator==(const ConfigOptions&) const = default;

  // Those that hold for a draft as well: rotary positions are each model's own.
  ConfigOptions OfDraft() const {
    ConfigOptions options = *this;
    options.rotary_base = options.rotary_scaling_factor = 0.0;
    options.rotary_dim = 0;
    options.rotary_scaling_type.clear();
    return options;
  }
};

}  // namespace tandem
