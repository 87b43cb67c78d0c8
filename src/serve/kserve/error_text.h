// The messages of errors as clients of the inference protocol get them, over either transport. Pure
// functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem::serve::kserve {

// With the words that clients search for.
std::string ErrorText(const Status& error);

// UNIMPLEMENTED: `caller`, which takes one response ("ModelInfer RPC"), asked a decoupled model.
// Names `others` that take several, and how a model gives one.
Status RefuseDecoupled(std::string_view caller, std::string_view others);

}  // namespace tandem::serve::kserve
