#include "ops/cpu/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "tensor/buffer.h"

namespace tandem::ops::cpu {
namespace {

using Seconds = std::chrono::duration<double>;

Seconds Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

constexpr int64_t kPage = 4096;

}  // namespace

double MeasureReadBandwidth(const CpuKernels& kernels, ThreadPool& pool, int64_t bytes,
                            int passes) {
  const Buffer memory = Buffer::OnHost(static_cast<size_t>(bytes));
  if (memory.data() == nullptr) return 0.0;
  // Untouched pages all map to one page of zeros: write to each to get separate ones.
  pool.ParallelFor(bytes, kPage, [&](int64_t begin, int64_t end) {
    std::memset(memory.As<char>() + begin, 1, static_cast<size_t>(end - begin));
  });
  std::atomic<uint64_t> sink{0};
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    const Seconds begin = Now();
    pool.ParallelFor(bytes / kPage, 1, [&](int64_t first, int64_t last) {
      sink += kernels.read_stream(memory.As<char>() + first * kPage, (last - first) * kPage);
    });
    best = std::max(best, static_cast<double>(bytes) / (Now() - begin).count());
  }
  return best;
}

double MeasureMatrixPeak(const CpuKernels& kernels, ThreadPool& pool, Element element) {
  // The sustained rate: units that clock down under load, and threads that share a core with
  // others, are faster for some milliseconds than over a whole prompt. First find how many steps
  // fill a burst.
  constexpr double kBurstSeconds = 0.2;
  int64_t steps = 1000;
  double best = 0.0;
  for (int run = 0; run < 3;) {
    std::atomic<double> operations{0.0};
    const Seconds begin = Now();
    pool.Run([&](int /*thread*/) { operations += kernels.matrix_burst(element, steps); });
    const double seconds = (Now() - begin).count();
    if (seconds < kBurstSeconds) {
      steps *= 2;
      continue;
    }
    best = std::max(best, operations.load() / seconds);
    ++run;
  }
  return best;
}

}  // namespace tandem::ops::cpu
