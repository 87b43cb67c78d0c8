// What a config.json calls the fields of the spec that was read from it: ValidateSpec then says
// "n_head is 0" of a folder of GPT-2. Data and pure functions.
#pragma once

#include "model/json_fields.h"
#include "model/spec.h"

namespace tandem {

// A field's name is the key that the config has for it, or that most configs have if it has none.
FieldNames WordsOf(const JsonFields& config);

}  // namespace tandem
