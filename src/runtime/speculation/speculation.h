// Speculation: all that an engine learns about drafts, and the choice of their lengths that follows
// from it. The engine's Commit tells it what steps took and emitted; Scheduler::Plan asks it.
// Executors measure and know nothing of it.
//
// Owned by the engine loop; engine thread only. Nothing here allocates after construction.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/speculation/acceptance.h"
#include "runtime/speculation/cost_table.h"
#include "runtime/speculation/draft_length.h"
#include "runtime/speculation/output_length.h"
#include "runtime/speculation/round_gain.h"
#include "runtime/speculation/step_overhead.h"
#include "runtime/speculation/step_times.h"

namespace tandem {

class Speculation {
 public:
  // `costs`: measured at start; empty: nothing is drafted by choice. `acceptance_prior`: the rate
  // assumed before anything was drafted.
  Speculation(int32_t max_sequences, int32_t max_draft_len, CostTable costs,
              double acceptance_prior = 0.7);

  // ---- Learning, with the results of a step ----

  // The times of a step of `sequences` sequences that emitted `tokens` tokens together;
  // step_seconds: from the end of the step before to its own, 0 if the engine did something else in
  // between.
  void ObserveStep(const StepTimes& times, double step_seconds, int32_t sequences, int32_t tokens);
  // A sequence's round: of `proposed` drafts `accepted` were accepted.
  void ObserveDrafts(int32_t proposed, int32_t accepted) {
    acceptance_.Observe(proposed, accepted);
  }
  // A sequence that held a slot has ended.
  void ObserveOutput(int32_t tokens) { output_length_.Observe(tokens); }

  // ---- Planning the next step ----

  // For a sequence of which `own` is known.
  double EstimateAcceptance(const Acceptance& own) const {
    return own.Estimate(acceptance_.Estimate(acceptance_prior_));
  }
  // How many more tokens a sequence is likely to emit that may emit at most this many.
  double ExpectOutput(int32_t at_most) const { return output_length_.Expect(at_most); }
  // Sets the candidates' num_drafts: one candidate for each decoding sequence of the step.
  // base_rows: the rows of the target's pass without drafts. max_drafts: of all together.
  void Choose(std::span<DraftCandidate> candidates, int32_t base_rows, int32_t max_drafts);

 private:
  double PriceOf(const PassTime& passes) const;

  const double acceptance_prior_;
  CostTable costs_;
  StepOverhead overhead_;
  RoundGain gain_;
  Acceptance acceptance_{0.99, 20.0};  // of all sequences, over about a hundred rounds
  OutputLength output_length_;
  DraftLengthChooser chooser_;
  int64_t steps_idle_ = 0;  // decoding steps since any sequence drafted
};

}  // namespace tandem
