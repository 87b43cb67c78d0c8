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
  int64_t steps_idle = 0;   // since any sequence last drafted: pays for tries
  double round_gain = 1.0;  // speed of recent rounds with drafts, relative to plain decoding
};

// Chooses num_drafts of each candidate by expected goodput (tokens per second of the step): drafts
// enter in the order of their probability of being emitted, and the count with the best goodput is
// taken; none unless it beats plain decoding by a margin. A sequence whose draft model lags must
// promise more than one that continues to draft, so that none alternates near break-even.
//
// Prices that make drafting look too expensive would never be corrected, because nothing would be
// tried. `hope`, one value per number of decoding sequences, therefore discounts steps with drafts;
// it shrinks as steps draft and slowly returns as they do not. And a price between two measured
// ones may make a few drafts look free that are not: while rounds emit fewer tokens per second than
// plain decoding would, hope becomes a surcharge that ends them, for a few seconds: the rounds may
// have met a busy machine. That comparison needs the price of
// a plain pass, so while steps draft one in 128 decodes plainly: the first after that many that has
// no prompt in it. Keeps its scratch memory between calls.
class DraftLengthChooser {
 public:
  // `hope` at start; 1 if prices are known to be right.
  static constexpr double kFirstHope = 0.9;
  DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, double hope = kFirstHope);
  void Choose(std::span<DraftCandidate> candidates, const DraftContext& context,
              const CostTable& costs);

 private:
  struct Draft {
    double worth = 0.0;  // tokens: the probability of emission, less if it starts with a catch-up
    int32_t candidate = 0;
    int32_t position = 0;  // 1: the first draft of its round
  };
  void ListDrafts(std::span<const DraftCandidate> candidates);
  void LearnHope(size_t bucket, bool drafts, double round_gain);
  void ChooseProbe(std::span<DraftCandidate> candidates, const DraftContext& context,
                   const CostTable& costs) const;

  std::vector<Draft> drafts_;
  std::vector<int32_t> rows_at_;  // [max_draft_len + 1] rows of each draft step
  // By RowBucket of the decoding sequences.
  std::array<double, kNumRowBuckets> hope_;
  std::array<int32_t, kNumRowBuckets> steps_drafting_{};  // since a plain one
};

}  // namespace tandem
