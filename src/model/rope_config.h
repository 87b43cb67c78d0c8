// Reads the object that describes rotary scaling, as Hugging Face writes it in rope_scaling or
// rope_parameters and TensorRT-LLM in rotary_scaling. A pure function.
#pragma once

#include "model/json_fields.h"
#include "model/spec.h"

namespace tandem {

// Sets the spec's rope_scaling, and stretches its max_positions (those of the config until now) by
// the factor of linear and dynamic scaling. `original_positions`: llama3's trained context where
// the object does not say. A type that is not computed here, or a missing or absurd factor, becomes
// the fault of `rope`, by its key.
void ReadRopeScaling(const JsonFields& rope, int64_t original_positions, ModelSpec& spec);

}  // namespace tandem
