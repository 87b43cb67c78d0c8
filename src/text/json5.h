// JSON5, as people write configuration files: comments, bare names, commas at the end. A pure
// function; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem {

// The same value as JSON text. INVALID_ARGUMENT with line and column; a name that an object has
// twice is one of the errors.
Result<std::string> Json5ToJson(std::string_view text);

}  // namespace tandem
