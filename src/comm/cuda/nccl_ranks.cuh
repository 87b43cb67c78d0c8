// MakeCudaRanksOfProcesses for GPUs and streams instead of backends. Used only in comm/cuda.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "ops/cuda/device/context.cuh"

namespace tandem::cuda_ranks {

Result<std::vector<std::unique_ptr<Communicator>>> MakeNcclRanks(
    std::span<const ops::cuda::Context> contexts, const std::shared_ptr<Communicator>& processes,
    int stages);

}  // namespace tandem::cuda_ranks
