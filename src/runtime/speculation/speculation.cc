#include "runtime/speculation/speculation.h"

#include <algorithm>
#include <utility>

namespace tandem {

Speculation::Speculation(int32_t max_sequences, int32_t max_draft_len, CostTable costs,
                         double acceptance_prior)
    : acceptance_prior_(acceptance_prior),
      costs_(std::move(costs)),
      chooser_(max_sequences, max_draft_len) {}

double Speculation::PriceOf(const PassTime& passes) const {
  return costs_.Seconds(passes.model, passes.rows) +
         passes.more * costs_.Seconds(passes.model, passes.more_rows);
}

void Speculation::ObserveStep(const StepTimes& times, int32_t sequences, int32_t tokens) {
  for (const PassTime& passes : times.passes) {
    if (passes.verifies) {
      costs_.ObserveVerify(passes.rows, passes.seconds);
    } else {
      costs_.ObservePriced(passes.model, PriceOf(passes), passes.seconds);
    }
  }
  gain_.Observe(sequences, tokens, times.round_seconds,
                costs_.Seconds(ModelIndex::kTarget, sequences));
}

void Speculation::Choose(std::span<DraftCandidate> candidates, int32_t base_rows,
                         int32_t max_drafts) {
  const auto sequences = static_cast<int32_t>(candidates.size());
  chooser_.Choose(candidates, {base_rows, max_drafts, steps_idle_, gain_.Estimate(sequences)},
                  costs_);
  const bool drafts = std::ranges::any_of(
      candidates, [](const DraftCandidate& candidate) { return candidate.num_drafts > 0; });
  if (drafts) {
    steps_idle_ = 0;
  } else if (sequences > 0) {
    ++steps_idle_;
  }
}

}  // namespace tandem
