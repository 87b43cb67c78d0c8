// Reason: what went wrong, for programs that act on it; a Status carries one beside its code. A new
// reason is one line here and the switches that care. A plain value; any thread.
#pragma once

#include <cstdint>

namespace tandem {

enum class Reason : uint8_t {
  kNone,           // the code says enough
  kContextLength,  // prompt and output do not fit the model's context, or the prompt its own limit
  kQueueFull,      // the bounded queue takes nothing more
  kQueueWait,      // the request waited for its turn as long as it may
  kModelNotFound,  // no model of that name is loaded
};

}  // namespace tandem
