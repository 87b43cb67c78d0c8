// What the GPUs of this machine are to each other, for people who decide where ranks go. Reads the
// CUDA runtime and looks for a library; starts nothing on a GPU. Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

// From one GPU to another.
struct GpuLink {
  int first = 0;
  int second = 0;
  bool can_read = false;     // each the other's memory: what ranks need
  bool has_atomics = false;  // in hardware, which NVLink has and PCIe has not
  int performance_rank = 0;  // CUDA's: 0 is the fastest kind of link of the machine
};

struct GpuLinks {
  int num_gpus = 0;
  std::vector<GpuLink> links = {};  // each pair once
};

// No GPU without CUDA or a driver.
GpuLinks ReadGpuLinks();

// A line for each kind of link, with the pairs that have it: "0-1, 0-2: NVLink, ...". Where there
// are no two GPUs a line that says so.
std::vector<std::string> DescribeLinks(const GpuLinks& links);

// "2.21.5" of the libnccl.so.2 that programs of this machine load; an error says why there is none.
Result<std::string> NcclVersion();

}  // namespace tandem
