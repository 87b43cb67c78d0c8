// How the ranks' parts are put together once they lie in this rank's memory. Each function enqueues
// one kernel on the rank's stream. Used only in comm/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/device/context.cuh"
#include "tensor/tensor.h"

namespace tandem::cuda_ranks {

// The parts of all ranks: `own` is that of `rank`, and of rank r != `rank` it lies `stride` bytes
// times r after `received`. The stride is a multiple of 16.
struct ReceivedParts {
  const std::byte* received = nullptr;
  int64_t stride = 0;
  const void* own = nullptr;
  int rank = 0;
  int size = 1;
};

// sums: [n], fp32, bf16 or fp16; it may be the own part. An element is added up in fp32, in the
// order of the ranks, and rounded once.
void EnqueueSum(const ops::cuda::Context& context, const ReceivedParts& parts, const Tensor& sums);
// fp32. The parts [rows, width] side by side in all: [rows, columns]; what would lie beyond
// `columns` is left out.
void EnqueuePlace(const ops::cuda::Context& context, const ReceivedParts& parts, int64_t width,
                  const Tensor& all);

// Loads the kernels onto the current GPU.
void LoadReceivedParts();

}  // namespace tandem::cuda_ranks
