// The protocol's rules for the parameters of an inference request and of its tensors, the same for
// every transport. Pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

// INVALID_ARGUMENT, with the parameter as field, for a name that begins with "triton_": the
// protocol keeps these for itself. A transport that gives one a meaning takes it out before.
Status CheckParameters(const Parameters& parameters);

// Checks the parameters of an input or of a requested output, and returns the range of shared
// memory that they name for its data. CheckParameters; UNIMPLEMENTED, with the tensor as field, for
// classification; INVALID_ARGUMENT as SharedMemoryOf.
Result<std::optional<SharedMemoryRange>> CheckTensorParameters(std::string_view tensor,
                                                               const Parameters& parameters);

}  // namespace tandem::serve::kserve
