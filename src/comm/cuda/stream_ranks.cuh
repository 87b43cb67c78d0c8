// MakeCudaRanks for GPUs and streams instead of backends. Used only in comm/cuda.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/stages.h"
#include "ops/cuda/device/context.cuh"

namespace tandem::cuda_ranks {

// Restores the thread's current GPU.
class CurrentGpu {
 public:
  CurrentGpu() { ops::cuda::CheckCuda(cudaGetDevice(&device_), "the current GPU"); }
  ~CurrentGpu() { ops::cuda::CheckCuda(cudaSetDevice(device_), "choosing the GPU"); }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  int device_ = 0;
};

struct StreamRanksOptions {
  // AllReduce is one-shot up to this size, two-shot beyond. Not set: where two-shot is faster. The
  // results are the same.
  std::optional<int64_t> one_shot_bytes;
  Stages stages;
  // Called with the first failure, by the thread that reports it; null: nobody else is told.
  std::function<void(const Status& why)> on_failure = {};
};

Result<std::vector<std::unique_ptr<Communicator>>> MakeStreamRanks(
    std::span<const ops::cuda::Context> contexts, const StreamRanksOptions& options);

}  // namespace tandem::cuda_ranks
