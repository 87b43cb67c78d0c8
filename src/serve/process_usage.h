// ProcessUsage: this process's use of CPU and memory. Any thread.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tandem::serve {

struct ProcessUsage {
  double cpu_seconds = 0;         // user and system, of all threads
  double start_time_seconds = 0;  // since 1970
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t threads = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// From /proc/self; NOT_FOUND on a machine without it.
Result<ProcessUsage> ReadProcessUsage();

}  // namespace tandem::serve
