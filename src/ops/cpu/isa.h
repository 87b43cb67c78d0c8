// The instruction sets that this CPU and kernel allow, and the fastest of them. Pure queries, safe
// on any thread; the answers do not change while the program runs.
#pragma once

#include <string_view>
#include <vector>

#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

// The tables that may run here, slowest first. The first call asks the kernel for AMX's tile
// registers.
const std::vector<const CpuKernels*>& SupportedKernels();

// Null when the CPU lacks it or the name is unknown.
const CpuKernels* FindKernels(std::string_view name);

// The one that multiplied fastest in a short measurement (a few milliseconds, once per program
// run).
const CpuKernels& FastestKernels();

}  // namespace tandem::ops::cpu
