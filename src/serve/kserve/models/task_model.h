// TaskModel: a model whose answer to a request is one response, computed by a function on the
// model's own thread.
#pragma once

#include <functional>

#include "serve/kserve/repository.h"

namespace tandem::serve::kserve {

// `compute` is called on one thread at a time.
using Compute = std::function<Result<InferResponse>(const InferRequest&)>;

InferModelPtr MakeTaskModel(const inference::ModelConfig& config, Compute compute);

}  // namespace tandem::serve::kserve
