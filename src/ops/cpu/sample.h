// CpuSampler: Sample and VerifyAndAccept of ops.h on the CPU. A row's result depends on that row
// alone, so rows go to any thread in any order. Owned by the CPU backend's Ops; one caller at a
// time. Allocates only for a vocabulary larger than any before (Reserve does so in advance).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/sample_scratch.h"
#include "ops/sampling.h"

namespace tandem::ops {

class CpuSampler {
 public:
  // `pool` outlives the sampler.
  explicit CpuSampler(ThreadPool& pool);

  // Makes room for rows of `vocab` tokens; later calls with at most as many allocate nothing.
  void Reserve(int64_t vocab);

  // As Ops::Sample: out[i] belongs to rows[i].
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out);

  // As Ops::VerifyAndAccept.
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab);

 private:
  ThreadPool& pool_;
  int64_t reserved_vocab_ = 0;
  std::vector<SampleScratch> scratch_;  // one per thread
};

}  // namespace tandem::ops
