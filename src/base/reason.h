// Reason: the cause of an error, for programs that act on it; a Status carries one in addition to
// its code. A new reason is one line here and a case in each switch that acts on it. A plain value;
// any thread.
#pragma once

#include <cstdint>

namespace tandem {

enum class Reason : uint8_t {
  kNone,           // the code is enough
  kContextLength,  // prompt and output do not fit the model's context, or the prompt its own limit
  kQueueFull,      // the bounded queue is full
  kQueueWait,      // the request waited for its turn for the longest time allowed
  kModelNotFound,  // no model of that name is loaded
  kAlreadyExists,  // the name is taken
};

}  // namespace tandem
