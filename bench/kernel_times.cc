// A library for CUDA_INJECTION64_PATH: at its end the program leaves one line for each of the last
// $KERNEL_TIMES_KEEP kernels in the file $KERNEL_TIMES_FILE, in the order in which they began:
//
//   begin end grid_x grid_y grid_z name        times in ns
//
// CUPTI sees kernels inside of replayed graphs, and those that begin before the one before them has
// ended. bench/kernel_times.py builds it and reads the file.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Kernel {
  uint64_t begin, end;
  int32_t grid[3];
  std::string name;
};

std::mutex mutex;  // CUPTI calls from a thread of its own
std::vector<Kernel> kernels;

size_t NumKept() {
  const char* const kept = std::getenv("KERNEL_TIMES_KEEP");
  return kept == nullptr ? 20000 : std::strtoull(kept, nullptr, 10);
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *bytes = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *max_records = 0;
}

void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t used) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    kernels.push_back({kernel.start,
                       kernel.end,
                       {kernel.gridX, kernel.gridY, kernel.gridZ},
                       kernel.name == nullptr ? "?" : kernel.name});
  }
  std::free(buffer);
  // Buffers come in any order, so some more than asked for are kept until the end.
  const size_t most = 4 * NumKept() + 100000;
  if (kernels.size() > 2 * most) kernels.erase(kernels.begin(), kernels.end() - most);
}

void WriteFile() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(mutex);
  const char* const path = std::getenv("KERNEL_TIMES_FILE");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) return;
  std::sort(kernels.begin(), kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.begin < b.begin; });
  for (size_t i = kernels.size() - std::min(kernels.size(), NumKept()); i < kernels.size(); ++i) {
    const Kernel& kernel = kernels[i];
    std::fprintf(file, "%llu %llu %d %d %d %s\n", static_cast<unsigned long long>(kernel.begin),
                 static_cast<unsigned long long>(kernel.end), kernel.grid[0], kernel.grid[1],
                 kernel.grid[2], kernel.name.c_str());
  }
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer);
  const CUptiResult result = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  if (result != CUPTI_SUCCESS) std::fprintf(stderr, "kernel_times: CUPTI error %d\n", result);
  std::atexit(WriteFile);
  return 1;
}
