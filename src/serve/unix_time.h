// The time of day, for protocols that report it; waiting is measured on a Clock. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace tandem::serve {

// Seconds since 1970.
inline int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace tandem::serve
