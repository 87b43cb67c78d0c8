// DraftLengthChooser: how many drafts each sequence gets in a step. A plain value, used only by the
// engine thread; nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/speculation/cost_table.h"
#include "runtime/speculation/round_planner.h"
#include "runtime/speculation/row_bucket.h"

namespace tandem {

// What is known of the steps before.
struct DraftHistory {
  int64_t steps_idle = 0;   // since any sequence last drafted: pays for probes
  double round_gain = 1.0;  // speed of recent rounds with drafts, relative to plain decoding
};

// Chooses num_drafts of each candidate: those of the round with the best expected goodput; none
// unless it beats plain decoding by a margin.
//
// What is expected may be wrong in both directions. Where drafting looks too expensive, nothing
// would ever correct it, and one sequence alone may lose where many together win. So now and then
// they draft together for some rounds, a try, which shows what passes take and which drafts hold.
// It has at least as many drafts as there are sequences. A try is made if it would pay were its
// rounds somewhat cheaper than they look, and all tries together take a small share of the time.
//
// Where drafting looks too cheap, rounds emit fewer tokens per second than plain decoding would: a
// surcharge, the doubt, then ends them, for a few seconds: the rounds may have met a busy machine.
// That comparison needs the price of a plain pass, so while steps draft one in 128 decodes plainly:
// the first after that many that has no prompt in it.
class DraftLengthChooser {
 public:
  // tries: false if what is expected is known to be right.
  DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, bool tries = true);
  // Returns whether the step belongs to a try.
  bool Choose(std::span<DraftCandidate> candidates, const RoundContext& context,
              const DraftHistory& history, const CostTable& costs);

 private:
  // What was learnt from steps with this many decoding sequences.
  struct Experience {
    double doubt = 1.0;          // surcharge on steps with drafts
    int32_t steps_drafting = 0;  // since a plain one
    double try_steps = 0.0;      // the next try may take as long as this many plain steps
    double try_share = 0.0;      // what every plain step adds to try_steps
    int32_t try_rounds = 0;      // rounds left of the current try
  };
  Round ChooseRound(const Round& plain, const RoundPlanner::Rounds& rounds,
                    std::span<const DraftCandidate> candidates, const DraftHistory& history,
                    const CostTable& costs, Experience& experience) const;

  const bool tries_;
  RoundPlanner planner_;
  std::array<Experience, kNumRowBuckets> experience_;  // by RowBucket of the decoding sequences
};

}  // namespace tandem
