#include "runtime/speculation/speculative.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>
#include <random>
#include <vector>

namespace tandem {
namespace {

constexpr double kNoHope = 1.0;  // prices are known to be right

// A memory-bound target: a second per pass and a hundredth per row. A draft takes a twentieth of
// it.
CostTable Costs(double target_row = 0.01, double draft = 0.05, double draft_row = 0.0005) {
  CostTable costs;
  const CostTable::Point target_points[] = {{1, 1.0}, {1001, 1.0 + 1000 * target_row}};
  const CostTable::Point draft_points[] = {{1, draft}, {1001, draft + 1000 * draft_row}};
  costs.Set(ModelIndex::kTarget, target_points);
  costs.Set(ModelIndex::kDraft, draft_points);
  return costs;
}

DraftCandidate Candidate(double acceptance, int32_t max_drafts = 8) {
  DraftCandidate candidate;
  candidate.acceptance = acceptance;
  candidate.max_drafts = max_drafts;
  candidate.expected_tokens = 100;
  return candidate;
}

constexpr int32_t kLongIdle = 100;  // steps: a try is paid for

std::vector<int32_t> Choose(std::vector<DraftCandidate> candidates, const CostTable& costs,
                            int32_t base_rows = 0, int32_t max_drafts = 1000) {
  DraftLengthChooser chooser(64, 8, kNoHope);
  if (base_rows == 0) base_rows = static_cast<int32_t>(candidates.size());
  chooser.Choose(candidates, {base_rows, max_drafts, kLongIdle}, costs);
  std::vector<int32_t> lengths;
  for (const DraftCandidate& candidate : candidates) lengths.push_back(candidate.num_drafts);
  return lengths;
}

int32_t ChooseOne(double acceptance, const CostTable& costs, int32_t max_drafts = 8) {
  return Choose({Candidate(acceptance, max_drafts)}, costs)[0];
}

TEST(CostTable, IsLinearBetweenPointsAndBeyondTheLast) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {3, 3.0}, {5, 3.0}, {7, 7.0}};
  costs.Set(ModelIndex::kTarget, points);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 0), 0.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 2), 2.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 4), 3.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 8), 9.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kDraft, 8), 0.0);
}

TEST(CostTable, NeverFallsWithMoreRows) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 2.0}, {2, 1.5}, {4, 3.0}};
  costs.Set(ModelIndex::kTarget, points);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 1), 1.5);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 2), 1.5);
}

TEST(CostTable, FollowsWhatIsObservedAndShrugsOffAHiccup) {
  CostTable costs = Costs();
  const double before = costs.Seconds(ModelIndex::kTarget, 100);
  costs.Observe(ModelIndex::kTarget, 1, 1000.0);
  EXPECT_LT(costs.Seconds(ModelIndex::kTarget, 100), before * 1.2);
  for (int i = 0; i < 300; ++i) costs.Observe(ModelIndex::kTarget, 1, 2.0);
  EXPECT_NEAR(costs.Seconds(ModelIndex::kTarget, 100), 2 * before, 0.1 * before);
}

TEST(CostTable, ADraftThatIsNotObservedFollowsTheTarget) {
  CostTable costs = Costs();
  const double before = costs.Seconds(ModelIndex::kDraft, 1);
  for (int i = 0; i < 300; ++i) costs.Observe(ModelIndex::kDraft, 1, 1000.0);
  EXPECT_GT(costs.Seconds(ModelIndex::kDraft, 1), 10 * before);
  for (int i = 0; i < 3000; ++i) costs.Observe(ModelIndex::kTarget, 1, 1.0);
  EXPECT_LT(costs.Seconds(ModelIndex::kDraft, 1), 1.2 * before);
}

TEST(CostTable, LearnsWhatVerifyingTakesBesidePlainPasses) {
  CostTable costs = Costs();
  for (int i = 0; i < 300; ++i) {
    costs.Observe(ModelIndex::kTarget, 1, 2.0);
    costs.ObserveVerify(101, 2 * 2.0 * 1.3);
  }
  EXPECT_NEAR(costs.VerifyFactor(101), 1.3, 0.05);
  EXPECT_EQ(costs.VerifyFactor(65), costs.VerifyFactor(128));
  EXPECT_EQ(costs.VerifyFactor(64), 1.0) << "other numbers of rows are not touched";
  EXPECT_NEAR(costs.Seconds(ModelIndex::kTarget, 101), 2 * 2.0, 0.2);  // the price itself stays
}

TEST(CostTable, LearnsInAFewPassesWhatItDoesNotKnowAndHoldsWhatItKnows) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {101, 2.0}};
  costs.Set(ModelIndex::kTarget, points);
  for (int i = 0; i < 12; ++i) costs.ObserveVerify(101, 2.0 * 0.6);
  EXPECT_NEAR(costs.VerifyFactor(101), 0.6, 0.08);
  for (int i = 0; i < 1000; ++i) costs.ObserveVerify(101, 2.0 * 0.6);
  const double known = costs.VerifyFactor(101);
  for (int i = 0; i < 12; ++i) costs.ObserveVerify(101, 2.0);
  EXPECT_LT(costs.VerifyFactor(101), 1.06 * known);
  for (int i = 0; i < 20000; ++i) costs.Observe(ModelIndex::kTarget, 1, 1.0);
  for (int i = 0; i < 12; ++i) costs.ObserveVerify(101, 2.0);
  EXPECT_GT(costs.VerifyFactor(101), 0.85) << "long not verified: trusted less";
}

TEST(CostTable, APlainPassLeavesThePriceOfVerifyingAsItWasFound) {
  CostTable costs = Costs();
  const auto verify_seconds = [&](int32_t rows) {
    return costs.Seconds(ModelIndex::kTarget, rows) * costs.VerifyFactor(rows);
  };
  for (int i = 0; i < 300; ++i) costs.ObserveVerify(101, 2.6);
  const double known = verify_seconds(101);
  const double unknown = verify_seconds(1001);
  for (int i = 0; i < 20; ++i) costs.Observe(ModelIndex::kTarget, 1, 0.7);
  EXPECT_LT(costs.Seconds(ModelIndex::kTarget, 1), 0.8);
  EXPECT_NEAR(verify_seconds(101), known, 0.02 * known);
  EXPECT_NEAR(verify_seconds(1001), 0.7 * unknown, 0.1 * unknown) << "it goes with the plain price";
}

TEST(Acceptance, StartsAtThePriorAndLearns) {
  Acceptance acceptance;
  EXPECT_DOUBLE_EQ(acceptance.Estimate(0.7), 0.7);
  for (int i = 0; i < 200; ++i) acceptance.Observe(4, 4);
  EXPECT_GT(acceptance.Estimate(0.7), 0.99);
  for (int i = 0; i < 200; ++i) acceptance.Observe(4, 0);
  EXPECT_LT(acceptance.Estimate(0.7), 0.01);
  for (int i = 0; i < 200; ++i) acceptance.Observe(4, i % 2 == 0 ? 4 : 0);
  EXPECT_NEAR(acceptance.Estimate(0.7), 0.8, 0.03);  // four of five tested drafts were accepted
}

TEST(ChooseDraftLengths, GrowsWithAcceptance) {
  const CostTable costs = Costs();
  int32_t last = 0;
  for (double acceptance = 0.0; acceptance <= 1.0; acceptance += 0.05) {
    const int32_t length = ChooseOne(acceptance, costs);
    EXPECT_GE(length, last) << acceptance;
    last = length;
  }
  EXPECT_EQ(last, 8);
}

TEST(ChooseDraftLengths, IsZeroWhereDraftsSeldomHold) {
  EXPECT_EQ(ChooseOne(0.05, Costs()), 0);
  EXPECT_GT(ChooseOne(0.6, Costs()), 0);
}

TEST(ChooseDraftLengths, IsZeroWhereRowsOrDraftsAreExpensive) {
  EXPECT_EQ(ChooseOne(0.9, Costs(1.0)), 0);        // a verified row costs a whole pass
  EXPECT_EQ(ChooseOne(0.9, Costs(0.01, 1.0)), 0);  // a draft costs as much as the target
}

TEST(ChooseDraftLengths, FallsWithTheBatchWhereRowsBindTheTarget) {
  // Proportional from the first row on: no free rows to verify in.
  CostTable costs;
  const CostTable::Point target[] = {{1, 1.0}, {16, 1.0}, {1016, 63.5}};
  const CostTable::Point draft[] = {{1, 0.1}, {16, 0.1}, {1016, 6.35}};
  costs.Set(ModelIndex::kTarget, target);
  costs.Set(ModelIndex::kDraft, draft);
  int32_t last = 9;
  for (const size_t batch : {1u, 4u, 16u, 64u}) {
    const auto lengths = Choose(std::vector(batch, Candidate(0.7)), costs);
    const int32_t longest = *std::max_element(lengths.begin(), lengths.end());
    EXPECT_LE(longest, last) << batch;
    last = longest;
  }
  EXPECT_EQ(last, 0);
}

TEST(ChooseDraftLengths, NeverChoosesLessGoodputThanPlainDecoding) {
  for (const double target_row : {0.0, 0.01, 0.1, 0.5}) {
    for (const double draft : {0.01, 0.1, 0.5}) {
      const CostTable costs = Costs(target_row, draft);
      for (const double acceptance : {0.1, 0.4, 0.7, 0.95}) {
        for (const int32_t batch : {1, 3, 17}) {
          const auto count = static_cast<size_t>(batch);
          const auto lengths = Choose(std::vector(count, Candidate(acceptance)), costs);
          double tokens = batch, seconds = 0.0;
          int32_t rows = batch;
          for (int32_t position = 1; position <= 8; ++position) {
            int32_t drafting = 0;
            for (const int32_t length : lengths) drafting += length >= position;
            tokens += drafting * std::pow(acceptance, position);
            seconds += costs.Seconds(ModelIndex::kDraft, drafting);
            rows += drafting;
          }
          seconds += costs.Seconds(ModelIndex::kTarget, rows);
          EXPECT_GE(tokens / seconds, batch / costs.Seconds(ModelIndex::kTarget, batch));
        }
      }
    }
  }
}

TEST(ChooseDraftLengths, GivesMoreToTheSequenceThatIsPredicted) {
  const auto lengths = Choose({Candidate(0.9), Candidate(0.3), Candidate(0.0)}, Costs());
  EXPECT_GT(lengths[0], lengths[1]);
  EXPECT_EQ(lengths[2], 0);
}

TEST(ChooseDraftLengths, KeepsToItsBounds) {
  EXPECT_EQ(ChooseOne(1.0, Costs(), 3), 3);
  EXPECT_EQ(ChooseOne(1.0, Costs(), 0), 0);
  const auto lengths = Choose(std::vector(4, Candidate(1.0)), Costs(), 4, 10);
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0), 10);
}

TEST(ChooseDraftLengths, PricesACatchUpByWhatIsLeftToGainFromIt) {
  const CostTable costs = Costs(0.01, 0.05, 0.005);
  DraftCandidate far_behind = Candidate(0.8, 3);
  far_behind.draft_lag = 500;  // 2.5 seconds
  far_behind.expected_tokens = 4;
  EXPECT_EQ(Choose({far_behind}, costs)[0], 0);
  far_behind.expected_tokens = 400;
  EXPECT_GT(Choose({far_behind}, costs)[0], 0);
}

// A prompt of 12 tokens costs the draft as much with others' rows as alone: 16 answers of few
// tokens never earn it back, 16 long ones do.
TEST(ChooseDraftLengths, ShortAnswersDoNotPayForTheDraftsPrompt) {
  const CostTable costs = Costs(0.01, 0.05, 0.01);
  DraftCandidate fresh = Candidate(0.8, 4);
  fresh.draft_lag = 13;
  fresh.expected_tokens = 3;
  const auto short_answers = Choose(std::vector(16, fresh), costs);
  EXPECT_EQ(std::accumulate(short_answers.begin(), short_answers.end(), 0), 0);
  fresh.expected_tokens = 60;
  const auto long_answers = Choose(std::vector(16, fresh), costs);
  EXPECT_GT(std::accumulate(long_answers.begin(), long_answers.end(), 0), 0);
}

// If every row costs the same, a draft that sometimes fails loses. Prompts in the step make it
// longer but drafts no better: they are computed either way.
TEST(ChooseDraftLengths, PromptsInTheStepMakeNoDraftWorthwhile) {
  CostTable costs;
  const CostTable::Point target[] = {{1, 1.0}, {8, 1.0}, {1008, 126.0}};
  const CostTable::Point draft[] = {{1, 0.01}, {8, 0.01}, {1008, 1.26}};
  costs.Set(ModelIndex::kTarget, target);
  costs.Set(ModelIndex::kDraft, draft);
  for (const int32_t prompt_rows : {0, 20, 200}) {
    const auto lengths = Choose(std::vector(16, Candidate(0.85)), costs, 16 + prompt_rows);
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0), 0) << prompt_rows;
  }
}

// A flat piece of the curve that starts where the prompts end: drafts cost the same there as
// elsewhere.
TEST(ChooseDraftLengths, ADisturbedPriceBesideAPromptMakesNoDraftWorthwhile) {
  CostTable costs;
  const CostTable::Point target[] = {{1, 1.0}, {46, 46.0}, {52, 46.1}, {1000, 1000.0}};
  const CostTable::Point draft[] = {{1, 0.01}, {1000, 10.0}};
  costs.Set(ModelIndex::kTarget, target);
  costs.Set(ModelIndex::kDraft, draft);
  const auto lengths = Choose(std::vector(16, Candidate(0.95)), costs, 46, 10);
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0), 0);
}

TEST(ChooseDraftLengths, DraftsBesideAPromptWhereRowsAreFree) {
  EXPECT_EQ(Choose({Candidate(0.9)}, Costs(0.0), 200)[0], ChooseOne(0.9, Costs(0.0)));
}

TEST(ChooseDraftLengths, TriesAgainNowAndThenButOnlyWhereItCouldPay) {
  DraftCandidate idle = Candidate(0.01);
  idle.draft_lag = 17;
  idle.probe.rounds_idle = 15;
  EXPECT_EQ(Choose({idle}, Costs())[0], 0);
  idle.probe.rounds_idle = 16;
  EXPECT_EQ(Choose({idle}, Costs())[0], 1);
  EXPECT_EQ(Choose({idle}, Costs(1.0))[0], 0);
  idle.probe.AfterRound(1, 0);
  EXPECT_EQ(idle.probe.interval, 32);
  idle.probe.AfterRound(1, 1);
  EXPECT_EQ(idle.probe.interval, 16);
}

TEST(ChooseDraftLengths, DoesNotTryWhatItKnows) {
  DraftCandidate idle = Candidate(0.95, 1);
  idle.draft_lag = 400;  // good drafts, but a catch-up that a short rest never pays
  idle.expected_tokens = 2;
  idle.probe.rounds_idle = 400;
  EXPECT_EQ(Choose({idle}, Costs(0.01, 0.05, 0.005))[0], 0);
}

// Steps of sequences whose drafts are never accepted, with a draft whose catch-up costs in
// proportion to the missed tokens.
TEST(ChooseDraftLengths, TriesTakeASmallShareOfTheTime) {
  const CostTable costs = Costs(0.02, 0.05, 0.0005);
  DraftLengthChooser chooser(64, 8, kNoHope);
  std::vector<DraftCandidate> candidates(16, Candidate(0.01));
  double tries = 0.0, plain = 0.0;
  int32_t tried = 0, idle = 0;
  for (int32_t step = 0; step < 5000; ++step) {
    chooser.Choose(candidates, {16, 1000, idle++}, costs);
    plain += costs.Seconds(ModelIndex::kTarget, 16);
    for (DraftCandidate& candidate : candidates) {
      if (candidate.num_drafts > 0) {
        tries += costs.Seconds(ModelIndex::kDraft, candidate.draft_lag) +
                 costs.Seconds(ModelIndex::kTarget, 17) - costs.Seconds(ModelIndex::kTarget, 16);
        ++tried;
        idle = 0;
      }
      candidate.draft_lag = candidate.num_drafts > 0 ? 1 : candidate.draft_lag + 1;
      candidate.probe.AfterRound(candidate.num_drafts, 0);
    }
  }
  EXPECT_GT(tried, 16);
  EXPECT_LE(tries, 0.005 * plain);
}

TEST(ChooseDraftLengths, GoesOnWithWhatItWouldNotStart) {
  // Goodput of one draft that is accepted 7 times in 10: 1.7 tokens in 1.6 seconds, against 1 in 1.
  const CostTable costs = Costs(0.55, 0.05);
  DraftCandidate drafting = Candidate(0.7, 1);
  EXPECT_EQ(Choose({drafting}, costs)[0], 1);
  drafting.draft_lag = 3;
  EXPECT_EQ(Choose({drafting}, costs)[0], 0);
  EXPECT_EQ(Choose({Candidate(0.6, 1)}, costs)[0], 0);
}

// Only plain steps tell the cost of a plain pass, and one that has a prompt in it tells nothing.
TEST(ChooseDraftLengths, DecodesPlainlyNowAndThenWhileItDrafts) {
  const CostTable costs = Costs();
  DraftLengthChooser chooser(64, 8, kNoHope);
  std::vector<DraftCandidate> candidates = {Candidate(0.9)};
  const auto count_plain = [&](int32_t steps, int32_t base_rows) {
    int32_t plain = 0;
    for (int32_t step = 0; step < steps; ++step) {
      chooser.Choose(candidates, {base_rows, 1000, 0}, costs);
      plain += candidates[0].num_drafts == 0 ? 1 : 0;
      candidates[0].draft_lag = candidates[0].num_drafts == 0 ? 3 : 2;
    }
    return plain;
  };
  EXPECT_EQ(count_plain(1280, 1), 10);
  EXPECT_EQ(count_plain(1280, 1 + 20), 0);
  EXPECT_EQ(count_plain(2, 1), 1) << "made up for after the prompts";
}

// ---- A simulation with made-up prices: the result of the chooser's decisions over many steps ----

struct World {
  const char* name;
  std::vector<CostTable::Point> target, draft;
};

// Seconds in units of a plain pass. "rows cost": each row nearly as much as the first, in tiles of
// five, as the embedded pair on a CPU; "rows free": nothing but weights to read up to 16 rows.
std::vector<World> Worlds() {
  return {{"rows cost",
           {{1, 1.0}, {5, 1.6}, {6, 2.3}, {10, 3.0}, {11, 3.4}, {15, 4.2}, {1015, 284.2}},
           {{1, 0.06}, {8, 0.23}, {1008, 25.0}}},
          {"rows cost, a dear draft",
           {{1, 1.0}, {4, 1.4}, {1004, 351.4}},
           {{1, 0.2}, {8, 0.6}, {1008, 60.0}}},
          {"rows free",
           {{1, 1.0}, {16, 1.05}, {64, 1.4}, {1064, 14.0}},
           {{1, 0.08}, {16, 0.09}, {64, 0.12}, {1064, 0.7}}}};
}

// Closed loop: `batch` sequences, each replaced when it has ended. Does a scheduler's accounting
// (acceptance of all and of one, lengths, lags) and adds up the true prices; the chooser sees
// prices that every pass disturbs. Prompts of the target cost both ways of decoding the same, so
// they are left out; the draft's are not. Half of the sequences have drafts that are accepted at
// one rate, half at another.
struct Population {
  double low = 0.0, high = 0.0;
};

std::ostream& operator<<(std::ostream& out, const Population& population) {
  return out << population.low << " to " << population.high;
}

class Simulation {
 public:
  struct Outcome {
    double tokens = 0.0;
    double seconds = 0.0;
    int64_t starts = 0;  // rounds that draft after one of the same sequence that did not
    double Rate() const { return tokens / seconds; }
  };

  // measured: the prices found at start; the world's are the true ones.
  Simulation(const World& world, int32_t batch, const Population& population)
      : Simulation(world, world, batch, population) {}
  Simulation(const World& world, const World& measured, int32_t batch, const Population& population)
      : chooser_(batch, kMaxDrafts), population_(population), running_(static_cast<size_t>(batch)) {
    true_.Set(ModelIndex::kTarget, world.target);
    true_.Set(ModelIndex::kDraft, world.draft);
    seen_.Set(ModelIndex::kTarget, measured.target);
    seen_.Set(ModelIndex::kDraft, measured.draft);
    for (Running& sequence : running_) sequence = Fresh();
  }

  double PlainRate() const {
    const auto batch = static_cast<int32_t>(running_.size());
    return batch / true_.Seconds(ModelIndex::kTarget, batch);
  }

  // fixed: the length of every draft, as if set by an option; -1: chosen. The first learning phase
  // is not counted.
  Outcome Run(int32_t steps, int32_t fixed) {
    Outcome learning, outcome;
    for (int32_t step = 0; step < kLearningSteps; ++step) Step(fixed, learning);
    for (int32_t step = 0; step < steps; ++step) Step(fixed, outcome);
    return outcome;
  }

 private:
  static constexpr int32_t kMaxDrafts = 8;
  static constexpr int32_t kPrompt = 12;
  static constexpr int32_t kLearningSteps = 1000;

  struct Running {
    int32_t left = 0;  // tokens
    int32_t emitted = 0;
    int32_t lag = kPrompt + 1;
    bool drafted = false;
    double truth = 0.0;
    Acceptance acceptance;
    ProbeState probe;
  };

  Running Fresh() {
    Running sequence;
    sequence.left = std::uniform_int_distribution<int32_t>(10, 70)(random_);
    const bool is_low = std::bernoulli_distribution(0.5)(random_);
    sequence.truth = is_low ? population_.low : population_.high;
    return sequence;
  }

  DraftCandidate CandidateOf(const Running& sequence) const {
    DraftCandidate candidate;
    candidate.acceptance = sequence.acceptance.Estimate(all_.Estimate(0.7));
    // A sequence does not know when it will end; its bound is far beyond that.
    candidate.max_drafts = kMaxDrafts;
    candidate.draft_lag = sequence.lag;
    candidate.expected_tokens = length_.Expect(200);
    candidate.probe = sequence.probe;
    return candidate;
  }

  void Step(int32_t fixed, Outcome& outcome) {
    candidates_.clear();
    for (const Running& sequence : running_) candidates_.push_back(CandidateOf(sequence));
    if (fixed < 0) {
      chooser_.Choose(candidates_, {static_cast<int32_t>(running_.size()), 10000, steps_idle_},
                      seen_);
      const bool drafts = std::ranges::any_of(
          candidates_, [](const DraftCandidate& candidate) { return candidate.num_drafts > 0; });
      steps_idle_ = drafts ? 0 : steps_idle_ + 1;
    } else {
      for (DraftCandidate& candidate : candidates_) candidate.num_drafts = fixed;
    }
    const double seconds = PassSeconds();
    outcome.seconds += seconds;
    const double before = outcome.tokens;
    for (size_t i = 0; i < running_.size(); ++i) Land(running_[i], candidates_[i], outcome);
    const bool drafted = std::ranges::any_of(
        candidates_, [](const DraftCandidate& candidate) { return candidate.num_drafts > 0; });
    if (drafted) {
      seen_.ObserveRound(static_cast<int32_t>(running_.size()),
                         static_cast<int32_t>(outcome.tokens - before), seconds);
    }
  }

  double PassSeconds() {
    double seconds = 0.0;
    int32_t target_rows = 0;
    for (int32_t position = 1; position <= kMaxDrafts; ++position) {
      int32_t rows = 0;
      for (const DraftCandidate& candidate : candidates_) {
        if (candidate.num_drafts >= position) rows += position == 1 ? candidate.draft_lag : 1;
      }
      seconds += Pass(ModelIndex::kDraft, rows);
    }
    for (const DraftCandidate& candidate : candidates_) target_rows += 1 + candidate.num_drafts;
    const bool verifies = target_rows > static_cast<int32_t>(candidates_.size());
    return seconds + Pass(ModelIndex::kTarget, target_rows, verifies);
  }

  double Pass(ModelIndex model, int32_t rows, bool verifies = false) {
    const double seconds = true_.Seconds(model, rows);
    const double noise = std::uniform_real_distribution<double>(0.85, 1.15)(random_);
    if (verifies) {
      seen_.ObserveVerify(rows, seconds * noise);
    } else {
      seen_.Observe(model, rows, seconds * noise);
    }
    return seconds;
  }

  void Land(Running& sequence, const DraftCandidate& candidate, Outcome& outcome) {
    const int32_t proposed = candidate.num_drafts;
    std::bernoulli_distribution holds(sequence.truth);
    int32_t accepted = 0;
    while (accepted < proposed && holds(random_)) ++accepted;
    const int32_t emitted = std::min(accepted + 1, sequence.left);
    sequence.acceptance.Observe(proposed, accepted);
    sequence.probe.AfterRound(proposed, accepted);
    all_.Observe(proposed, accepted);
    if (proposed > 0 && !sequence.drafted && sequence.emitted > 0) ++outcome.starts;
    sequence.drafted = proposed > 0;
    sequence.lag = proposed == 0 ? sequence.lag + 1 : (accepted == proposed ? 2 : 1);
    sequence.emitted += emitted;
    sequence.left -= emitted;
    outcome.tokens += emitted;
    if (sequence.left > 0) return;
    length_.Observe(sequence.emitted);
    sequence = Fresh();
  }

  DraftLengthChooser chooser_;
  const Population population_;
  CostTable true_, seen_;
  std::mt19937 random_{7};
  std::vector<Running> running_;
  Acceptance all_{0.99, 20.0};
  OutputLength length_;
  int64_t steps_idle_ = 0;
  std::vector<DraftCandidate> candidates_;
};

constexpr Population kPopulations[] = {{0.2, 0.2}, {0.4, 0.4},   {0.6, 0.6},  {0.8, 0.8},
                                       {0.9, 0.9}, {0.95, 0.95}, {0.3, 0.95}, {0.0, 0.95}};
constexpr int32_t kBatches[] = {1, 2, 4, 8, 16, 32, 64};

TEST(ChooserInAWorld, IsNeverSlowerThanPlainAndNearlyAsFastAsTheBestFixedLength) {
  for (const World& world : Worlds()) {
    for (const int32_t batch : kBatches) {
      for (const Population& population : kPopulations) {
        const int32_t steps = 200 + 4000 / batch;
        const auto simulate = [&](int32_t fixed) {
          return Simulation(world, batch, population).Run(steps, fixed).Rate();
        };
        const double plain = Simulation(world, batch, population).PlainRate();
        double best = plain;
        for (const int32_t fixed : {1, 2, 3, 4, 6, 8}) best = std::max(best, simulate(fixed));
        const double chosen = simulate(-1);
        EXPECT_GE(chosen, 0.98 * plain)
            << world.name << ", batch " << batch << ", acceptance " << population;
        // It does not know the acceptance; whoever fixed the length did.
        EXPECT_GE(chosen, 0.9 * best)
            << world.name << ", batch " << batch << ", acceptance " << population;
      }
    }
  }
}

// Every price is wrong by up to `share`, as on a machine with other load: from the difference of
// two of them drafts may look half as expensive as they are.
World Disturbed(const World& world, uint32_t seed, double share) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<double> error(1.0 - share, 1.0 + share);
  CostTable exact;
  exact.Set(ModelIndex::kTarget, world.target);
  exact.Set(ModelIndex::kDraft, world.draft);
  World measured = {world.name, {}, {}};
  for (const int32_t rows :
       {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 128, 256, 512, 1024}) {
    measured.target.push_back({rows, exact.Seconds(ModelIndex::kTarget, rows) * error(random)});
    measured.draft.push_back({rows, exact.Seconds(ModelIndex::kDraft, rows) * error(random)});
  }
  return measured;
}

TEST(ChooserInAWorld, IsNotSlowerThanPlainWherePricesWereMeasuredWrong) {
  for (const World& world : Worlds()) {
    for (const int32_t batch : kBatches) {
      for (const double acceptance : {0.6, 0.8, 0.9, 0.95}) {
        for (uint32_t seed = 0; seed < 5; ++seed) {
          const World measured = Disturbed(world, seed, 0.1);
          Simulation simulation(world, measured, batch, {acceptance, acceptance});
          EXPECT_GE(simulation.Run(200 + 4000 / batch, -1).Rate(), 0.98 * simulation.PlainRate())
              << world.name << ", batch " << batch << ", acceptance " << acceptance << ", seed "
              << seed;
        }
      }
    }
  }
}

// A start whose every price is wrong by up to a quarter must not decide for long: drafts that pay
// are found, those that do not are given up.
TEST(ChooserInAWorld, FindsOutWhatTheStartMeasuredWrong) {
  constexpr size_t kStarts = 10;
  for (const World& world : Worlds()) {
    for (const int32_t batch : {4, 16, 32}) {
      for (const double acceptance : {0.6, 0.8, 0.9}) {
        const Population population = {acceptance, acceptance};
        const double plain = Simulation(world, batch, population).PlainRate();
        double best = plain;
        for (const int32_t fixed : {1, 2, 3, 4, 6, 8}) {
          best = std::max(best, Simulation(world, batch, population).Run(1000, fixed).Rate());
        }
        std::vector<double> rates;
        for (uint32_t seed = 0; seed < kStarts; ++seed) {
          const World measured = Disturbed(world, seed, 0.25);
          rates.push_back(Simulation(world, measured, batch, population).Run(2000, -1).Rate());
        }
        std::ranges::sort(rates);
        EXPECT_GE(rates[0], std::max(0.98 * plain, 0.8 * best))
            << world.name << ", batch " << batch << ", acceptance " << acceptance;
        EXPECT_GE(rates[kStarts / 2], 0.9 * best)
            << world.name << ", batch " << batch << ", acceptance " << acceptance;
      }
    }
  }
}

// Wherever the acceptance puts the price of drafting, including near break-even.
TEST(ChooserInAWorld, DoesNotGoBackAndForth) {
  for (const World& world : Worlds()) {
    for (const int32_t batch : kBatches) {
      for (double acceptance = 0.5; acceptance < 1.0; acceptance += 0.05) {
        const Simulation::Outcome outcome =
            Simulation(world, batch, {acceptance, acceptance}).Run(200 + 4000 / batch, -1);
        EXPECT_LE(static_cast<double>(outcome.starts), 0.025 * outcome.tokens)
            << world.name << ", batch " << batch << ", acceptance " << acceptance;
      }
    }
  }
}

TEST(OutputLength, FollowsWhatHasEnded) {
  OutputLength length;
  EXPECT_EQ(length.Expect(7), 7.0);
  EXPECT_EQ(length.Expect(1000), 64.0);
  for (int i = 0; i < 200; ++i) length.Observe(i % 2 == 0 ? 10 : 20);
  EXPECT_NEAR(length.Expect(1000), 15.0, 1.0);
  EXPECT_EQ(length.Expect(0), 1.0);
}

}  // namespace
}  // namespace tandem
