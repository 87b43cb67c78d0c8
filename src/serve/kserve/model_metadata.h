// The metadata of a model as the protocol gives it: a part of its configuration. A pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/kserve/inference.h"
#include "serve/kserve/tensor.h"

namespace tandem::serve::kserve {

struct TensorMetadata {
  std::string name;
  DataType type = DataType::kBytes;
  std::vector<int64_t> shape;  // with the batch; -1: any
};

struct ModelMetadata {
  std::string name;
  std::string platform;  // the backend if the configuration names no platform
  std::vector<TensorMetadata> inputs;
  std::vector<TensorMetadata> outputs;
};

ModelMetadata MetadataOf(const inference::ModelConfig& config);

}  // namespace tandem::serve::kserve
