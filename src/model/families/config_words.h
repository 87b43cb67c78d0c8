// Errors about a ModelSpec in the words of the config.json that it was read from: "num_heads is 0"
// becomes "n_head is 0". Pure functions.
#pragma once

#include "base/status.h"
#include "model/json_fields.h"

namespace tandem {

// `status`: of ValidateSpec. Fields get the name of the key that the config has for them, or that
// most configs have if it has none.
Status InWordsOf(const JsonFields& config, const Status& status);

}  // namespace tandem
