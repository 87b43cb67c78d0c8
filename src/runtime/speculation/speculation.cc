#include "runtime/speculation/speculation.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

// A round counts as at most this many times its price: the machine was busy with something else.
constexpr double kLongestRound = 2.0;

}  // namespace

Speculation::Speculation(int32_t max_sequences, int32_t max_draft_len, CostTable costs,
                         double acceptance_prior)
    : acceptance_prior_(acceptance_prior),
      costs_(std::move(costs)),
      chooser_(max_sequences, max_draft_len) {}

double Speculation::PriceOf(const PassTime& passes) const {
  const double first = costs_.Seconds(passes.model, passes.rows);
  if (passes.verifies) return first * costs_.VerifyFactor(passes.rows);
  return first + costs_.CatchUpSeconds(passes.catch_up) +
         passes.more * costs_.Seconds(passes.model, passes.more_rows);
}

void Speculation::ObserveStep(const StepTimes& times, double step_seconds, int32_t sequences,
                              int32_t tokens) {
  double priced = 0.0;
  double taken = 0.0;
  bool timed = times.complete;
  for (const PassTime& passes : times.passes) {
    const double price = PriceOf(passes);
    priced += price;
    taken += passes.seconds;
    timed = timed && passes.seconds > 0.0;
    if (passes.verifies) {
      costs_.ObserveVerify(passes.rows, passes.seconds);
    } else {
      costs_.ObservePriced(passes.model, price, passes.seconds);
    }
  }
  if (timed && step_seconds > 0.0) overhead_.Observe(step_seconds - taken, taken);
  if (times.round_seconds <= 0.0) return;
  const double overhead = overhead_.Estimate();
  const double seconds = std::max(step_seconds, times.round_seconds);
  gain_.Observe(sequences, tokens, std::min(seconds, kLongestRound * (priced + overhead)),
                costs_.Seconds(ModelIndex::kTarget, sequences) + overhead);
}

void Speculation::Choose(std::span<DraftCandidate> candidates, int32_t base_rows,
                         int32_t max_drafts) {
  const auto sequences = static_cast<int32_t>(candidates.size());
  const bool tries = chooser_.Choose(
      candidates,
      {.base_rows = base_rows, .max_drafts = max_drafts, .overhead = overhead_.Estimate()},
      {.steps_idle = steps_idle_, .round_gain = gain_.Estimate(sequences)}, costs_);
  // A try's rounds include the catch-ups of many sequences, so they say nothing about the gain, and
  // earlier rounds are out of date.
  if (tries) gain_.Forget(sequences);
  const bool drafts = std::ranges::any_of(
      candidates, [](const DraftCandidate& candidate) { return candidate.num_drafts > 0; });
  if (drafts) {
    steps_idle_ = 0;
  } else if (sequences > 0) {
    ++steps_idle_;
  }
}

}  // namespace tandem
