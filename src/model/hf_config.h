// Readers of what the configs of many families say alike, in a Hugging Face config.json or in the
// config of a TensorRT-LLM checkpoint. Pure functions: each sets or returns part of a spec, and
// what is not computed here becomes the fault of the object that it reads, by its key.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/json_fields.h"
#include "model/spec.h"
#include "tensor/dtype.h"

namespace tandem {

// Records that the key's value is not supported; `why` follows it: "; it must be silu".
void Refuse(const JsonFields& config, std::string_view key, std::string_view why);

// The type of weights and activations: "dtype" (transformers 5) or "torch_dtype" (4). Neither means
// float32, as it does there.
DType ReadDType(const JsonFields& config);

// Rotary base and scaling: rope_theta and rope_scaling side by side (transformers 4), or both
// inside rope_parameters (5). The spec's max_positions are those of the config until now.
void ReadRope(const JsonFields& config, ModelSpec& spec);

// The object that describes rotary scaling: rope_scaling, rope_parameters or rotary_scaling. Sets
// the spec's rope_scaling, and stretches its max_positions by the factor of linear and dynamic
// scaling. `original_positions`: llama3's trained context where the object does not say.
void ReadRopeScaling(const JsonFields& rope, int64_t original_positions, ModelSpec& spec);

// A token id or a list of them. Ids outside the vocabulary are never produced and are left out:
// some configs write -1 for "none".
std::vector<int32_t> ReadIds(const JsonFields& config, std::string_view key, int64_t vocab_size);

}  // namespace tandem
