// CpuSampler: Sample and VerifyAndAccept of ops.h on the CPU. A row's result depends on that row
// alone, so rows go to any thread in any order. Owned by the CPU backend's Ops; one caller at a
// time. Allocates only when a larger vocabulary than before is seen (Reserve does it ahead of
// time).
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

  // As Ops::VerifyAndAccept: how many of `draft` held; *next is the token behind them.
  // draft_probs: [num_draft, vocab]; target_probs: [num_draft + 1, vocab], scratch afterwards.
  int32_t VerifyAndAccept(const SlotSampling& slot, int32_t position, const int32_t* draft,
                          int32_t num_draft, const float* draft_probs, float* target_probs,
                          int64_t vocab, int32_t* next);

 private:
  ThreadPool& pool_;
  int64_t reserved_vocab_ = 0;
  std::vector<SampleScratch> scratch_;  // one a thread
};

}  // namespace tandem::ops
