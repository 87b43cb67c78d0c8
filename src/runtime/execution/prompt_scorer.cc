#include "runtime/execution/prompt_scorer.h"

namespace tandem {

SampledToken PromptScorer::Score(std::span<const float> logits, int32_t token, int32_t num_top) {
  ops::SlotSampling sampling;
  sampling.params.num_top_logprobs = num_top;
  ops::SampleRow row;
  row.logits = logits.data();
  row.slot = &sampling;
  row.given = token;
  SampledToken scored;
  sampler_.Sample(std::span(&row, 1), static_cast<int64_t>(logits.size()), std::span(&scored, 1));
  return scored;
}

}  // namespace tandem
