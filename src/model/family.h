// Family: how a Hugging Face folder describes one kind of model. Data and pure functions; a
// new family is a file under families/ that fills one of these, and a row in families.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/spec.h"
#include "model/tensor_source.h"

namespace tandem {

struct Family {
  std::string_view name;                            // "llama"
  std::span<const std::string_view> architectures;  // as config.json calls it
  Result<ModelSpec> (*spec_from_hf)(const std::string& config_json);
  // Where a folder keeps a tensor of StoredWeights.
  TensorSource (*source)(const ModelSpec& spec, const WeightId& id);
};

}  // namespace tandem
