// The message of an error as clients of the inference protocol get it, over either transport. A
// pure function.
#pragma once

#include <string>

#include "base/status.h"

namespace tandem::serve::kserve {

// With the words that clients search for.
std::string ErrorText(const Status& error);

}  // namespace tandem::serve::kserve
