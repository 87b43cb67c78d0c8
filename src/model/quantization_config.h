// Reads the object that describes quantized weights, as Hugging Face folders hold it in
// quantization_config. docs/formats/fp8.md lists what is taken. A pure function.
#pragma once

#include "model/json_fields.h"
#include "model/spec.h"

namespace tandem {

// Sets the spec's quantization. Whatever is not computed here becomes the fault of `config`, by its
// key. Which modules were left out ("ignore") is not read: the types of the stored weights tell.
void ReadQuantization(const JsonFields& config, ModelSpec& spec);

}  // namespace tandem
