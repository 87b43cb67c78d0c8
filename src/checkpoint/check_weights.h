// Checks a model's numbers, for `inspect --check`. Reads every weight once, about one second per
// gigabyte; runs on the caller's thread.
#pragma once

#include <string>
#include <vector>

#include "model/weight_source.h"

namespace tandem {

struct BadWeight {
  std::string name;   // "transformer.layers.3.mlp.fc.weight"
  int64_t count = 0;  // elements that are NaN or infinite
};

// Weights that hold NaN or infinity; empty for a healthy model.
Result<std::vector<BadWeight>> FindNonFinite(WeightSource& source);

}  // namespace tandem
