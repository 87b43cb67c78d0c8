// The machine's free memory. Any thread.
#pragma once

#include <cstdint>

namespace tandem {

// Bytes that this process may still take without pushing others out: MemAvailable, and at most what
// the memory limit of its control group leaves.
int64_t FreeHostBytes();

}  // namespace tandem
