// Under which schemes a model's products are stored, where the files and not the config decide.
// Pure functions, used by the weight sources.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/weight_roles.h"

namespace tandem {

// Every product of the model that has weights of its own.
std::vector<WeightId> Products(const ModelSpec& spec);

// Describes the products as they are stored: the scheme that most of the quantized layers have, and
// the others as exceptions. An error if that is not supported.
Status SetStoredSchemes(const std::vector<SchemeException>& stored, ModelSpec& spec);

}  // namespace tandem
