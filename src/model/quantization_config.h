// Reads the object that describes quantized weights, as Hugging Face folders hold it in
// quantization_config. docs/formats/fp8.md lists the accepted forms. A pure function.
#pragma once

#include <string_view>

#include "model/json_fields.h"
#include "model/spec.h"

namespace tandem {

// Sets the spec's quantization. Anything unsupported is recorded as a fault of `config`, with its
// key. The list of modules left out ("ignore") is not read: the types of the stored weights show
// it.
void ReadQuantization(const JsonFields& config, ModelSpec& spec);

// quant_algo: the scheme's name in TensorRT-LLM checkpoints and in the folders that modelopt
// writes. Names that are not supported are recorded as a fault.
QuantScheme ReadQuantAlgo(const JsonFields& json);
// The name of a scheme that is not plain.
std::string_view QuantAlgoOf(const QuantScheme& scheme);

}  // namespace tandem
