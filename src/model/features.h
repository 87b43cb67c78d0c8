// What a model asks of a backend's ops beyond products. A pure function.
#pragma once

#include <vector>

#include "model/spec.h"
#include "ops/backend.h"

namespace tandem {

// Each feature once.
std::vector<ops::Feature> FeaturesOf(const ModelSpec& spec);

}  // namespace tandem
