// The time of day, for protocols that report it; waiting is measured on a Clock. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace tandem::serve {

template <typename Unit>
int64_t UnixTime() {
  return std::chrono::duration_cast<Unit>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Since 1970.
inline int64_t UnixSeconds() { return UnixTime<std::chrono::seconds>(); }
inline int64_t UnixMilliseconds() { return UnixTime<std::chrono::milliseconds>(); }
inline int64_t UnixNanoseconds() { return UnixTime<std::chrono::nanoseconds>(); }

}  // namespace tandem::serve
