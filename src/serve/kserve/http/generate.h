// The generate extension: a JSON object whose members are inputs or parameters, and responses as
// objects with the outputs as members. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

// Members with the name of one of the model's inputs become that input, at top level or inside
// "parameters"; others become request parameters. An empty body is an empty object. A value fills
// the input's shape: fixed dimensions divide the number of elements, the innermost free one takes
// the rest, and the other free ones, the batch's among them, are 1.
Result<InferRequest> ParseGenerate(const inference::ModelConfig& config, std::string_view body);

// One element is written bare, several as an array. Names are in alphabetical order.
std::string FormatGenerated(const InferResponse& response);

}  // namespace tandem::serve::kserve
