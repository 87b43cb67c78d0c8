// CudaSampler: Sample and VerifyAndAccept of ops.h on the GPU, one launch each, one team of blocks
// (sample_team.cuh) a row. Everything is read on the device: the host knows an upper bound of the
// rows alone. Needs no workspace: a row lies in its blocks' shared memory. A row's result depends
// on that row alone, bit for bit. Owned by CudaOps; used by the executor's thread.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/context.cuh"
#include "ops/sampling.h"

namespace tandem::ops::cuda {

class CudaSampler {
 public:
  explicit CudaSampler(const Context& context);

  // As Ops::Sample, for up to 400,000 tokens: what the shared memory of eight blocks holds.
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out);
  // As Ops::VerifyAndAccept.
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab);

 private:
  const Context context_;
};

}  // namespace tandem::ops::cuda
