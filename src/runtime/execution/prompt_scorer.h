// PromptScorer: the log-probabilities of a prompt's own tokens, from the logits of the tokens
// before them. On the host, by the arithmetic of the CPU's sampler, whatever the device is. Owned
// by the engine loop; its thread. Allocates at the first score.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/cpu/sample.h"

namespace tandem {

class PromptScorer {
 public:
  // The token with its log-probability and the `num_top` likeliest; `logits` are raw: [vocab].
  SampledToken Score(std::span<const float> logits, int32_t token, int32_t num_top);

 private:
  ThreadPool pool_{1};  // the caller alone
  ops::CpuSampler sampler_{pool_};
};

}  // namespace tandem
