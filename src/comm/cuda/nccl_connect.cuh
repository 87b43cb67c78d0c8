// How the GPUs of several processes become ranks of one communicator of NCCL. Used only in
// comm/cuda.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/nccl_library.h"
#include "ops/cuda/device/context.cuh"

namespace tandem::cuda_ranks {

// The GPUs of this process as ranks first, first + 1, ... of `size`, one communicator each, which
// are connected when this returns; all processes call it, with the same `id`. An error when NCCL
// has one, and when one of the `processes` leaves meanwhile: a thread that waits for it is then
// left behind, since NCCL cannot be told to stop waiting before it has made the communicators.
Result<std::vector<NcclLibrary::Comm>> ConnectNccl(const NcclLibrary& nccl,
                                                   const NcclLibrary::UniqueId& id, int size,
                                                   int first,
                                                   std::span<const ops::cuda::Context> contexts,
                                                   const Communicator& processes);

}  // namespace tandem::cuda_ranks
