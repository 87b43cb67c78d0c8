// The body of an invocation, whatever its content type → the JSON object of the `inputs` schema. A
// pure function; errors are INVALID_ARGUMENT.
#pragma once

#include <string_view>

#include "base/status.h"
#include "serve/json.h"

namespace tandem::serve::lmi {

// JSON; text/csv, whose column `inputs` becomes a list; text/plain, a list of one; forms, whose
// part `data`, `json` or `body` is any of these, or which have a field `inputs`. No content type,
// or application/octet-stream: JSON.
Result<Json> DecodeBody(std::string_view content_type, std::string_view body);

}  // namespace tandem::serve::lmi
