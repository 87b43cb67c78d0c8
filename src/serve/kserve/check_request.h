// CheckRequest: a request's tensors against the model's configuration, with the messages that
// clients of this protocol know. A pure function.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

// The type of a config's tensor. The config has been checked: it names no other type.
DataType TypeOf(int config_type);

// Checks names, types and shapes of the inputs and the names of the outputs, and returns the
// request's batch size (1 for a model without batches). Integers of 32 and 64 bits may stand for
// each other: older clients send UINT32 where newer ones send INT32; such an input is converted to
// the type of the config.
Result<int64_t> CheckRequest(const inference::ModelConfig& config, InferRequest& request);

}  // namespace tandem::serve::kserve
