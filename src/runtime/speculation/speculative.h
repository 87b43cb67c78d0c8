// What speculation is worth: the price of a step (CostTable), how likely drafts hold (Acceptance),
// and the draft lengths that give the most tokens a second (DraftLengthChooser). Plain values, used
// by the engine thread alone; nothing allocates after construction.
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

// Rows by powers of two: 1, 2, 3 to 4, 5 to 8 and so on. Larger ones than the last share it.
constexpr size_t kNumRowBuckets = 14;
size_t RowBucket(int32_t rows);

// Seconds of one forward pass by rows, per model: points measured at start, linear between them and
// beyond the last. Observations move one factor per model (context length, neighbours on the
// machine), never the shape, so that a row count that was never tried is not left with a stale
// price; and one factor for target passes that verify drafts, per power of two of their rows: the
// price of a draft is the difference of two points and as wrong as both. These are learnt in a few
// passes where nothing is known, then held steady, and trusted less again the longer nothing was
// verified. As far as they are known, a plain pass that changes the first factor leaves the price
// of verifying as it was: both are learnt apart, although one is kept relative to the other.
class CostTable {
 public:
  struct Point {
    int32_t rows = 0;
    double seconds = 0.0;
  };

  CostTable() = default;
  // Points by rising rows. What took longer than a larger step was disturbed: it gets the larger
  // one's seconds.
  void Set(ModelIndex model, std::span<const Point> points);
  bool empty(ModelIndex model) const { return curve(model).points.empty(); }

  // Zero for no rows or a model that was never measured.
  double Seconds(ModelIndex model, int32_t rows) const;
  // What a target pass of `rows` rows that verifies drafts takes, relative to Seconds.
  double VerifyFactor(int32_t rows) const { return verified_[RowBucket(rows)].factor; }
  // Passes without drafts, the draft model's own among them; target passes that verify drafts.
  void Observe(ModelIndex model, int32_t rows, double seconds);
  void ObserveVerify(int32_t rows, double seconds);
  // A round of `sequences` that decode, some of which drafted: what they emitted together and how
  // long all its passes took.
  void ObserveRound(int32_t sequences, int32_t tokens, double seconds);
  // Tokens a second of such rounds, relative to plain decoding; 1 until there were enough of them.
  double RoundGain(int32_t sequences) const;
  // Passes that took `seconds` together and were priced at `priced`.
  void ObservePriced(ModelIndex model, double priced, double seconds);

 private:
  struct Curve {
    std::vector<Point> points;
    double factor = 1.0;
    double passes = 0.0;  // that the factor was learnt from
  };
  struct Verified {
    double factor = 1.0;
    double passes = 0.0;  // that it was learnt from; fades
  };
  // Of the last few dozen rounds with drafts.
  struct Rounds {
    double count = 0.0;
    double gained = 0.0;   // seconds that plain decoding would have taken for their tokens
    double seconds = 0.0;  // that they took
  };
  const Curve& curve(ModelIndex model) const { return curves_[static_cast<size_t>(model)]; }
  static double Measured(const Curve& curve, int32_t rows);

  std::array<Curve, kNumModels> curves_;
  std::array<Verified, kNumRowBuckets> verified_;  // by RowBucket
  std::array<Rounds, kNumRowBuckets> rounds_;      // by RowBucket of the sequences
};

// The chance that a draft holds, given that those before it did: an exponential average over rounds
// that starts from a prior worth some drafts, which fades with the rounds. The prior weighs as much
// as a dozen rounds: of many sequences some always look better than they are, and drafts are given
// to those that look best.
class Acceptance {
 public:
  // A round counts `decay` times as much as the one after it; the prior as many drafts as given.
  explicit Acceptance(double decay = 0.95, double prior_drafts = 32.0)
      : decay_(decay), prior_drafts_(prior_drafts) {}

  // Of `proposed` drafts `accepted` held; the one after them, if any, was refused, the rest not
  // tested.
  void Observe(int32_t proposed, int32_t accepted);
  double Estimate(double prior) const;

 private:
  double decay_;
  double prior_drafts_;
  double held_ = 0.0;
  double tested_ = 0.0;
};

// Rounds since a sequence last drafted, and how long to wait before trying again although its
// estimate says no: a sequence that turns predictable is noticed. Every try that fails doubles the
// wait.
struct ProbeState {
  int32_t rounds_idle = 0;
  int32_t interval = 16;

  void AfterRound(int32_t proposed, int32_t accepted);
};

struct DraftCandidate {
  double acceptance = 0.0;  // estimate in [0, 1]
  int32_t max_drafts = 0;   // bound by tokens left, context, budget, option; 0: cannot draft
  int32_t draft_lag = 1;    // known tokens that the draft model has yet to compute
  // Tokens it is likely to emit yet: an outlook over which a long catch-up is paid off.
  double expected_tokens = 1.0;
  ProbeState probe;
  int32_t num_drafts = 0;           // the answer
  double catch_up_per_token = 0.0;  // the chooser's own
};

struct DraftLimits {
  // Target rows of the step without drafts: the candidates', the others' and the prompt chunks'.
  // Prompts are computed anyway, so their time counts on neither side; but drafts come after them
  // on the target's curve.
  int32_t base_rows = 0;
  int32_t max_drafts = 0;  // of all candidates together
  int64_t steps_idle = 0;  // since any sequence last drafted: what pays for tries
};

// How many tokens a sequence emits, from those that have ended.
class OutputLength {
 public:
  void Observe(int32_t tokens);
  // Of a sequence that may emit at most so many. However many it has emitted, the ends of others
  // tell nothing better than their mean.
  double Expect(int32_t at_most) const;

 private:
  double mean_ = 64.0;
};

// Chooses num_drafts of each candidate by expected goodput (tokens a second of the step): drafts
// enter in the order of their chance to be emitted, and the count with the best goodput is taken;
// none unless it beats plain decoding by a margin. A sequence whose draft model has fallen behind
// must promise more than one that goes on drafting, so that none goes back and forth near
// break-even.
//
// Prices that make drafting look too dear would never be found out, since nothing then tries. So
// there is hope, by the number of decoding sequences: a discount on the price of steps with drafts,
// which goes as steps draft and slowly comes back as they do not. And a price between two measured
// ones may make a few drafts look free that are not: while rounds emit fewer tokens a second than
// plain decoding would, hope turns into a surcharge that ends them. That comparison needs the price
// of a plain pass, so while steps draft one in 128 does not, the first after that many that has no
// prompt in it. Keeps its scratch memory between calls.
class DraftLengthChooser {
 public:
  // `hope` at start; 1 where prices are known to be right.
  static constexpr double kFirstHope = 0.9;
  DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, double hope = kFirstHope);
  void Choose(std::span<DraftCandidate> candidates, const DraftLimits& limits,
              const CostTable& costs);

 private:
  struct Draft {
    double worth = 0.0;  // tokens: the chance to be emitted, less where it starts with a catch-up
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
