// Readers of the fields that the configs of many families share, in a Hugging Face config.json or
// in the config of a TensorRT-LLM checkpoint. Pure functions: each sets or returns part of a spec
// and reports anything unsupported as a fault of the object it reads, with the key.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/json_fields.h"
#include "model/spec.h"
#include "tensor/dtype.h"

namespace tandem {

// Records that the key's value is not supported; `why` is appended: "; it must be silu".
void Refuse(const JsonFields& config, std::string_view key, std::string_view why);

// The type of weights and activations: "dtype" (transformers 5) or "torch_dtype" (4). Without
// either it is float32, as in transformers.
DType ReadDType(const JsonFields& config);

// Rotary base and scaling: rope_theta and rope_scaling side by side (transformers 4), or both
// inside rope_parameters (5). `max_positions`: the config's, which linear and dynamic scaling
// stretch.
RopeSpec ReadRope(const JsonFields& config, int64_t& max_positions);

// The object that describes rotary scaling: rope_scaling, rope_parameters or rotary_scaling.
// Stretches `max_positions` by the factor of linear and dynamic scaling. `original_positions`:
// llama3's trained context, used when the object does not give it.
RopeScaling ReadRopeScaling(const JsonFields& rope, int64_t original_positions,
                            int64_t& max_positions);

// As many equal layers as the key says.
std::vector<LayerSpec> RepeatLayer(const JsonFields& config, std::string_view key,
                                   const LayerSpec& layer);

// A token id or a list of them. Ids outside the vocabulary are never produced and are left out:
// some configs write -1 for "none".
std::vector<int32_t> ReadIds(const JsonFields& config, std::string_view key, int64_t vocab_size);

}  // namespace tandem
