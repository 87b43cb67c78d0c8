// What polling a call in progress brings, in every protocol.
#pragma once

#include <cstdint>

namespace tandem::serve {

enum class CallNews : uint8_t {
  kNone,    // nothing yet: ask again after `wake`
  kEvent,   // one part of the answer is there, and more may be
  kDone,    // the answer is complete; nothing follows
  kFailed,  // the call has ended with an error; nothing follows
};

}  // namespace tandem::serve
