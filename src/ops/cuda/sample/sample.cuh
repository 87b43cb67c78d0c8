// CudaSampler: Sample and VerifyAndAccept of ops.h on the GPU, with one team of blocks
// (sample_team.cuh) per row. All inputs are read on the device: the host knows only an upper bound
// of the rows. A row is kept in its blocks' shared memory and one launch takes all rows; before
// sm_90 a long row is kept in a workspace made with the object, and a launch takes as many rows as
// fit it. A row's draw depends on that row alone, and has the same bits on every GPU. Owned by
// CudaOps; used by the executor's thread.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/device/context.cuh"
#include "ops/sampling.h"

namespace tandem::ops::cuda {

class CudaSampler {
 public:
  // The limit of eight blocks' shared memory.
  static constexpr int64_t kMaxVocab = 400'000;

  explicit CudaSampler(const Context& context);
  ~CudaSampler();
  CudaSampler(const CudaSampler&) = delete;
  CudaSampler& operator=(const CudaSampler&) = delete;

  // As Ops::Sample, for up to kMaxVocab tokens.
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out);
  // As Ops::VerifyAndAccept.
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab);

 private:
  const Context context_;
  float* slices_ = nullptr;  // null with clusters
};

}  // namespace tandem::ops::cuda
