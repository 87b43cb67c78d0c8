// DraftLengthChooser: how many drafts each sequence gets in a step. A plain value, used only by the
// engine thread; nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculation/acceptance.h"
#include "runtime/speculation/cost_table.h"
#include "runtime/speculation/row_bucket.h"

namespace tandem {

enum class DraftMode : uint8_t {
  kAdaptive,  // k chosen per sequence by expected goodput, 0 when drafting would not pay
  kFixed,     // always EngineOptions::fixed_draft_len (tests, and users who ask for it)
  kOff,
};

struct DraftCandidate {
  double acceptance = 0.0;  // estimate in [0, 1]
  int32_t max_drafts = 0;   // bound by tokens left, context, budget, option; 0: cannot draft
  int32_t draft_lag = 1;    // known tokens that the draft model has yet to compute
  // Number of tokens it is likely to emit: the horizon over which a long catch-up must pay off.
  double expected_tokens = 1.0;
  ProbeState probe;
  int32_t num_drafts = 0;           // the result
  double catch_up_per_token = 0.0;  // used by the chooser only
};

// What the choice depends on besides the candidates.
struct DraftContext {
  // Target rows of the step without drafts: the candidates', the others' and the prompt chunks'.
  // Prompts are computed anyway, so their time counts on neither side; but drafts come after them
  // on the target's curve.
  int32_t base_rows = 0;
  int32_t max_drafts = 0;   // of all candidates together
  double overhead = 0.0;    // seconds of a step beside its passes
  int64_t steps_idle = 0;   // since any sequence last drafted: pays for probes
  double round_gain = 1.0;  // speed of recent rounds with drafts, relative to plain decoding
};

// Chooses num_drafts of each candidate by expected goodput (tokens per second of the step): for
// every number of passes of the draft model drafts enter in the order of their probability of being
// emitted, and the passes and the count with the best goodput are taken; none unless it beats plain
// decoding by a margin. A sequence whose draft model lags must promise more than one that continues
// to draft, so that none alternates near break-even.
//
// What is expected may be wrong in both directions. Where drafting looks too expensive, nothing
// would ever correct it, and one sequence alone may lose where all together win. So now and then
// all sequences draft for some rounds, a try, which shows what passes take and which drafts hold.
// A try is made if it would pay were a round somewhat cheaper than it looks, and all tries together
// take a small share of the time. Where drafting looks too cheap, rounds emit fewer tokens per
// second than plain decoding would: a surcharge, the doubt, then ends them, for a few seconds: the
// rounds may have met a busy machine. That comparison needs the price of a plain pass, so while
// steps draft one in 128 decodes plainly: the first after that many that has no prompt in it. Keeps
// its scratch memory between calls.
class DraftLengthChooser {
 public:
  // tries: false if what is expected is known to be right.
  DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, bool tries = true);
  // Returns whether the step belongs to a try.
  bool Choose(std::span<DraftCandidate> candidates, const DraftContext& context,
              const CostTable& costs);

 private:
  struct Draft {
    double worth = 0.0;  // tokens: the probability of emission, less if it starts with a catch-up
    int32_t candidate = 0;
    int32_t position = 0;  // 1: the first draft of its round
  };
  // A step and what it is expected to emit and to take: the first `drafts` of drafts_ that need at
  // most `passes` passes of the draft model.
  struct Round {
    int32_t passes = 0;
    size_t drafts = 0;
    double tokens = 0.0;
    double seconds = 0.0;
    double catch_up = 0.0;  // the share of these seconds that pays for catch-ups over time
    double Goodput() const { return seconds > 0.0 ? tokens / seconds : 0.0; }
  };
  // What is known of steps with so many decoding sequences.
  struct Experience {
    double doubt = 1.0;          // surcharge on steps with drafts
    int32_t steps_drafting = 0;  // since a plain one
    double try_steps = 0.0;      // the next try may take as long as these plain steps
    double try_share = 0.0;      // of each plain step, that is added to them
    int32_t try_rounds = 0;      // left of the current one
  };
  void ListDrafts(std::span<const DraftCandidate> candidates);
  Round BestRound(std::span<DraftCandidate> candidates, const DraftContext& context,
                  const CostTable& costs, size_t fewest);
  Round BestRoundOf(int32_t passes, std::span<const DraftCandidate> candidates, double overhead,
                    const CostTable& costs, size_t fewest);
  Round BestTry(std::span<DraftCandidate> candidates, const DraftContext& context,
                const CostTable& costs);
  static bool CouldPay(const Round& tried, const Round& plain, int32_t rounds_left);
  static double PriceOfTry(const Round& tried, const Round& plain,
                           std::span<const DraftCandidate> candidates, const CostTable& costs);
  Round BeginTry(const Round& plain, std::span<DraftCandidate> candidates,
                 const DraftContext& context, const CostTable& costs, Experience& experience);
  void ChooseProbe(std::span<DraftCandidate> candidates, const DraftContext& context,
                   const CostTable& costs) const;

  const bool tries_;
  const int32_t longest_;
  std::vector<Draft> drafts_;
  std::vector<double> verify_seconds_;  // [drafts - 1] of the target's pass
  std::vector<int32_t> rows_at_;        // [max_draft_len + 1] rows of each draft step
  std::array<Experience, kNumRowBuckets> experience_;  // by RowBucket of the decoding sequences
};

}  // namespace tandem
