// The value of speculation: the price of a step (CostTable), the acceptance rate of drafts
// (Acceptance), and the draft lengths that give the most tokens per second (DraftLengthChooser).
// Plain values, used only by the engine thread; nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cache/kv_cache.h"

namespace tandem {

enum class DraftMode : uint8_t {
  kAdaptive,  // k chosen per sequence by expected goodput, 0 when drafting would not pay
  kFixed,     // always EngineOptions::fixed_draft_len (tests, and users who ask for it)
  kOff,
};

// Rows by powers of two: 1, 2, 3 to 4, 5 to 8 and so on. Larger numbers share the last bucket.
constexpr size_t kNumRowBuckets = 14;
size_t RowBucket(int32_t rows);

// Seconds of one forward pass by rows, per model: points measured at start, linear between them and
// beyond the last. Observations move one factor per model (for context length and other load on the
// machine) but never the shape, so that the price of a row count that was never tried does not
// become stale. Target passes that verify drafts have another factor, per power of two of their
// rows: the price of a draft is the difference of two points and as wrong as both. These factors
// are learnt in a few passes while nothing is known, then kept steady, and trusted less the longer
// nothing was verified. A plain pass that changes the first factor leaves the price of verifying as
// it was, as far as that is known: the two are learnt apart, although one is stored relative to the
// other.
class CostTable {
 public:
  struct Point {
    int32_t rows = 0;
    double seconds = 0.0;
  };

  CostTable() = default;
  // Points by rising rows. A point that took longer than a larger one was disturbed: it gets the
  // larger one's seconds.
  void Set(ModelIndex model, std::span<const Point> points);
  bool empty(ModelIndex model) const { return curve(model).points.empty(); }

  // Zero for no rows or for a model that was never measured.
  double Seconds(ModelIndex model, int32_t rows) const;
  // Duration of a target pass of `rows` rows that verifies drafts, relative to Seconds.
  double VerifyFactor(int32_t rows) const { return verified_[RowBucket(rows)].factor; }
  // Passes without drafts, including the draft model's own; target passes that verify drafts.
  void Observe(ModelIndex model, int32_t rows, double seconds);
  void ObserveVerify(int32_t rows, double seconds);
  // A round of `sequences` decoding sequences, some of which drafted: the tokens they emitted
  // together and the duration of all its passes.
  void ObserveRound(int32_t sequences, int32_t tokens, double seconds);
  // Tokens per second of such rounds, relative to plain decoding; 1 until there were enough rounds.
  double RoundGain(int32_t sequences) const;
  // Passes that took `seconds` together and whose predicted cost was `priced`.
  void ObservePriced(ModelIndex model, double priced, double seconds);

 private:
  struct Curve {
    std::vector<Point> points;
    double factor = 1.0;
    double passes = 0.0;  // number of passes it was learnt from
  };
  struct Verified {
    double factor = 1.0;
    double passes = 0.0;  // number of passes it was learnt from; fades
  };
  // Of the last few dozen rounds with drafts.
  struct Rounds {
    double count = 0.0;
    double gained = 0.0;   // seconds that plain decoding would have taken for their tokens
    double seconds = 0.0;  // duration of these rounds
  };
  const Curve& curve(ModelIndex model) const { return curves_[static_cast<size_t>(model)]; }
  static double Measured(const Curve& curve, int32_t rows);

  std::array<Curve, kNumModels> curves_;
  std::array<Verified, kNumRowBuckets> verified_;  // by RowBucket
  std::array<Rounds, kNumRowBuckets> rounds_;      // by RowBucket of the sequences
};

// The probability that a draft is accepted, given that those before it were: an exponential average
// over rounds that starts from a prior worth some drafts, which fades with the rounds. The prior
// weighs as much as a dozen rounds: among many sequences some always look better than they are, and
// drafts are given to those that look best.
class Acceptance {
 public:
  // A round counts `decay` times as much as the next one; the prior as many drafts as given.
  explicit Acceptance(double decay = 0.95, double prior_drafts = 32.0)
      : decay_(decay), prior_drafts_(prior_drafts) {}

  // Of `proposed` drafts `accepted` were accepted; the one after them, if any, was rejected, the
  // rest not tested.
  void Observe(int32_t proposed, int32_t accepted);
  double Estimate(double prior) const;

 private:
  double decay_;
  double prior_drafts_;
  double held_ = 0.0;
  double tested_ = 0.0;
};

// Rounds since a sequence last drafted, and the number to wait before trying again although its
// estimate is low, so that a sequence that becomes predictable is noticed. Every failed try doubles
// the wait.
struct ProbeState {
  int32_t rounds_idle = 0;
  int32_t interval = 16;

  void AfterRound(int32_t proposed, int32_t accepted);
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

struct DraftLimits {
  // Target rows of the step without drafts: the candidates', the others' and the prompt chunks'.
  // Prompts are computed anyway, so their time counts on neither side; but drafts come after them
  // on the target's curve.
  int32_t base_rows = 0;
  int32_t max_drafts = 0;  // of all candidates together
  int64_t steps_idle = 0;  // since any sequence last drafted: pays for tries
};

// The expected number of tokens of a sequence, learnt from those that have ended.
class OutputLength {
 public:
  void Observe(int32_t tokens);
  // For a sequence that may emit at most this many. Whatever it has emitted so far, the mean of
  // ended sequences is the best estimate.
  double Expect(int32_t at_most) const;

 private:
  double mean_ = 64.0;
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
// plain decoding would, hope becomes a surcharge that ends them. That comparison needs the price of
// a plain pass, so while steps draft one in 128 decodes plainly: the first after that many that has
// no prompt in it. Keeps its scratch memory between calls.
class DraftLengthChooser {
 public:
  // `hope` at start; 1 if prices are known to be right.
  static constexpr double kFirstHope = 0.9;
  DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, double hope = kFirstHope);
  void Choose(std::span<DraftCandidate> candidates, const DraftLimits& limits,
              const CostTable& costs);

 private:
  struct Draft {
    double worth = 0.0;  // tokens: the probability of emission, less if it starts with a catch-up
    int32_t candidate = 0;
    int32_t position = 0;  // 1: the first draft of its round
  };
  void ListDrafts(std::span<const DraftCandidate> candidates);
  void LearnHope(size_t bucket, bool drafts, double round_gain);
  void ChooseProbe(std::span<DraftCandidate> candidates, const DraftLimits& limits,
                   const CostTable& costs) const;

  std::vector<Draft> drafts_;
  std::vector<int32_t> rows_at_;  // [max_draft_len + 1] rows of each draft step
  // By RowBucket of the decoding sequences.
  std::array<double, kNumRowBuckets> hope_;
  std::array<int32_t, kNumRowBuckets> steps_drafting_{};  // since a plain one
};

}  // namespace tandem
