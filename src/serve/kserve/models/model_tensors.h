// The tensors of the five models that Triton's users know, in one table: the union of what their
// generations have, with one type for each. Constants.
#pragma once

#include <string>

#include "serve/kserve/model_kinds.h"

namespace tandem::serve::kserve {

// The config of a model of this kind (not kOther): its tensors, and the backend that clients expect
// to see.
inference::ModelConfig MakeConfig(ModelKind kind, const std::string& name, int max_batch_size,
                                  bool is_decoupled);

}  // namespace tandem::serve::kserve
