// RoundPlanner: which drafts of a step promise the best goodput (tokens per second of the step),
// whatever was found out about such promises. A plain value, used only by the engine thread;
// nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculation/acceptance.h"
#include "runtime/speculation/cost_table.h"

namespace tandem {

struct DraftCandidate {
  double acceptance = 0.0;  // estimate in [0, 1]
  int32_t max_drafts = 0;   // bound by tokens left, context, budget, option; 0: cannot draft
  int32_t draft_lag = 1;    // known tokens that the draft model has yet to compute
  // Number of tokens it is likely to emit: the horizon over which a long catch-up must pay off.
  double expected_tokens = 1.0;
  ProbeState probe;
  int32_t num_drafts = 0;  // the result
};

// What a round depends on besides the candidates.
struct RoundContext {
  // Target rows of the step without drafts: the candidates', the others' and the prompt chunks'.
  // Prompts are computed anyway, so their time counts on neither side; but drafts come after them
  // on the target's curve.
  int32_t base_rows = 0;
  int32_t max_drafts = 0;  // of all candidates together
  double overhead = 0.0;   // seconds of a step beside its passes
};

// A step of some drafts in at most `passes` passes of the draft model, and what it is expected to
// emit and to take.
struct Round {
  int32_t passes = 0;
  size_t drafts = 0;
  double tokens = 0.0;
  double seconds = 0.0;
  double catch_up = 0.0;  // the share of these seconds that pays for catch-ups over time
  double Goodput() const { return seconds > 0.0 ? tokens / seconds : 0.0; }
};

// The target's seconds for the step's tokens and `drafts` more rows, without those of its prompts.
double StepSeconds(int32_t plain_rows, int32_t base_rows, int32_t drafts, const CostTable& costs);

// For every number of passes of the draft model drafts enter in the order of their probability of
// being emitted: a pass costs something however few rows it has, and that order alone would end in
// many passes for a few sequences. The drafts of a sequence whose draft model lags count for less,
// so that none alternates near break-even between drafting and catching up.
class RoundPlanner {
 public:
  // The round of the best goodput with at least one draft, and the one with at least as many drafts
  // as sequences can draft, or all that may be. Of no drafts if there may be none.
  struct Rounds {
    Round best;
    Round together;
  };

  RoundPlanner(int32_t max_candidates, int32_t max_draft_len);
  Rounds Plan(std::span<const DraftCandidate> candidates, const RoundContext& context,
              const CostTable& costs);
  // Adds the drafts of a round of the last Plan to the candidates' num_drafts.
  void Assign(const Round& round, std::span<DraftCandidate> candidates) const;

 private:
  struct Draft {
    double worth = 0.0;  // tokens: the probability of emission, less if it starts with a catch-up
    int32_t candidate = 0;
    int32_t position = 0;  // 1: the first draft of its round
  };
  void ListDrafts(std::span<const DraftCandidate> candidates);
  void PriceVerifying(int32_t plain_rows, const RoundContext& context, const CostTable& costs);
  void TryPasses(int32_t passes, std::span<const DraftCandidate> candidates, double overhead,
                 const CostTable& costs, Rounds& rounds);

  const int32_t longest_;
  size_t able_ = 0;  // candidates that can draft
  std::vector<Draft> drafts_;
  std::vector<double> verify_seconds_;      // [drafts - 1] of the target's pass
  std::vector<double> catch_up_per_token_;  // [candidates]
  std::vector<int32_t> rows_at_;            // [max_draft_len + 1] rows of each draft step
};

}  // namespace tandem
