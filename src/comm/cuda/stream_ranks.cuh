// MakeCudaRanks for GPUs and streams instead of backends. Used only in comm/cuda.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "ops/cuda/context.cuh"

namespace tandem::cuda_ranks {

struct StreamRanksOptions {
  // AllReduce is one-shot up to this size, two-shot beyond. Not set: where two-shot is faster. The
  // results are the same.
  std::optional<int64_t> one_shot_bytes;
  int stages = 1;  // of equally many ranks
};

Result<std::vector<std::unique_ptr<Communicator>>> MakeStreamRanks(
    std::span<const ops::cuda::Context> contexts, const StreamRanksOptions& options);

}  // namespace tandem::cuda_ranks
