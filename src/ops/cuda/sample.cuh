// CudaSampler: Sample and VerifyAndAccept of ops.h on the GPU, one team of blocks (sample_team.cuh)
// a row. Everything is read on the device: the host knows an upper bound of the rows alone. A row
// lies in its blocks' shared memory and all rows take one launch; before sm_90 a long one lies in a
// workspace made with the object, a launch for as many as that holds. A row's draw depends on that
// row alone, bit for bit, on every GPU the same. Owned by CudaOps; used by the executor's thread.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/context.cuh"
#include "ops/sampling.h"

namespace tandem::ops::cuda {

class CudaSampler {
 public:
  explicit CudaSampler(const Context& context);
  ~CudaSampler();
  CudaSampler(const CudaSampler&) = delete;
  CudaSampler& operator=(const CudaSampler&) = delete;

  // As Ops::Sample, for up to 400,000 tokens: what the shared memory of eight blocks holds.
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out);
  // As Ops::VerifyAndAccept.
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab);

 private:
  const Context context_;
  float* slices_ = nullptr;  // null with clusters
};

}  // namespace tandem::ops::cuda
