// What `tandem quantize` and `tandem convert` make of a model: how its weights are stored and what
// is calibrated for that. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "tensor/quant_scheme.h"

namespace tandem {

struct QuantizeRecipe {
  // How the range of inputs is moved into the weights.
  enum class InputScales : uint8_t { kNone, kSmoothQuant, kAwq };

  QuantScheme scheme;  // of the layers' products; plain: as they are
  InputScales input_scales = InputScales::kNone;
  double smooth_alpha = 0.5;  // SmoothQuant: 0 leaves the inputs, 1 moves all of their range
  std::optional<DType> cache_scales = {};  // of keys and values, for a cache of this type

  // Whether samples have to be run through the model.
  bool calibrates() const {
    return input_scales != InputScales::kNone || scheme.inputs == QuantScheme::Inputs::kStatic ||
           cache_scales.has_value();
  }
};

// quantize.py's --qformat, --awq_block_size and --kv_cache_dtype ("none", "fp8", "int8").
// UNIMPLEMENTED names what is not made.
Result<QuantizeRecipe> RecipeOf(const std::string& qformat, int64_t awq_block_size,
                                const std::string& kv_cache_dtype);

// The formats that quantize, for messages: "fp8, int8_wo".
std::string QuantFormatNames();

}  // namespace tandem
