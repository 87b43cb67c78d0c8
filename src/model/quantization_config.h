// The names of quantization schemes in TensorRT-LLM checkpoints. Pure functions.
#pragma once

#include <string_view>

#include "model/json_fields.h"
#include "model/spec.h"

namespace tandem {

// quant_algo: names that are not supported are recorded as a fault.
QuantScheme ReadQuantAlgo(const JsonFields& json);
// UNIMPLEMENTED where the spec's schemes have no name; QuantAlgoOf needs one.
Status CheckQuantAlgo(const ModelSpec& spec);
// The name of a scheme that is not plain.
std::string_view QuantAlgoOf(const QuantScheme& scheme);

}  // namespace tandem
