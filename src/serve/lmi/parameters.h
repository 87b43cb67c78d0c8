// The members of `parameters` in the `inputs` schema. A pure function.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "serve/json.h"
#include "serve/lmi/inputs_request.h"
#include "serve/lmi/settings.h"
#include "serve/text_request.h"

namespace tandem::serve::lmi {

constexpr size_t kMaxIgnoredParameters = 16;  // names without effect that are told

// Reads an object into the call (how its answer is written) and into the options of every prompt
// (what is generated).
Status ReadParameters(const Json& parameters, const Settings& settings, InputsCall& call,
                      TextRequest& options);

}  // namespace tandem::serve::lmi
