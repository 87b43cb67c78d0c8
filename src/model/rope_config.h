// Reads the object that describes rotary scaling, as Hugging Face writes it in rope_scaling or
// rope_parameters and TensorRT-LLM in rotary_scaling. A pure function.
#pragma once

#include "model/json_fields.h"
#include "model/spec.h"

namespace tandem {

// `original_positions`: the trained context where the object does not say. A type that is not
// computed here, or a missing factor, becomes the fault of `rope`, by its key.
RopeScaling ReadRopeScaling(const JsonFields& rope, int64_t max_positions,
                            int64_t original_positions);

}  // namespace tandem
