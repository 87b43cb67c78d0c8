// Speculation in made-up worlds: the result of what it learns and chooses over many steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <vector>

#include "runtime/speculation/speculation.h"

namespace tandem {
namespace {

struct World {
  const char* name;
  std::vector<CostTable::Point> target, draft;
  double overhead = 0.0;   // of a step, beside its passes
  double catch_up = -1.0;  // of a token; negative: as much as another row of the draft
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
           {{1, 0.08}, {16, 0.09}, {64, 0.12}, {1064, 0.7}}},
          {"rows cost, a slow host",
           {{1, 1.0}, {4, 1.0}, {8, 1.5}, {16, 2.1}, {1016, 115.0}},
           {{1, 0.06}, {8, 0.2}, {1008, 25.0}},
           0.4},
          {"rows cost, a draft that is mostly head",
           {{1, 1.0}, {16, 2.1}, {32, 3.2}, {128, 6.5}, {1128, 60.0}},
           {{1, 0.15}, {32, 1.0}, {1032, 33.0}},
           0.1,
           0.008}};
}

CostTable PricesOf(const World& world) {
  CostTable prices;
  prices.Set(ModelIndex::kTarget, world.target);
  prices.Set(ModelIndex::kDraft, world.draft);
  if (world.catch_up >= 0.0) prices.SetCatchUp(world.catch_up);
  return prices;
}

// Closed loop: `batch` sequences, each replaced when it has ended. Does what an engine does (drafts
// of each sequence, lags) and adds up the true prices; speculation is told prices that every pass
// disturbs. Prompts of the target cost both ways of decoding the same, so they are left out; the
// draft's are not. Half of the sequences have drafts that are accepted at one rate, half at
// another.
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
      : population_(population),
        true_(PricesOf(world)),
        overhead_(world.overhead),
        speculation_(batch, kMaxDrafts, PricesOf(measured)),
        running_(static_cast<size_t>(batch)) {
    for (Running& sequence : running_) sequence = Fresh();
  }

  // During the next `steps` steps the machine is busy whenever a round drafts: it takes twice as
  // long.
  void DisturbRounds(int32_t steps) { disturbed_steps_ = steps; }

  double PlainRate() const {
    const auto batch = static_cast<int32_t>(running_.size());
    return batch / (true_.Seconds(ModelIndex::kTarget, batch) + overhead_);
  }

  // fixed: the length of every draft, as if set by an option; -1: chosen. The first steps, in which
  // it learns, or in which with a fixed length the sequences' ages only mix, are not counted.
  Outcome Run(int32_t steps, int32_t fixed) {
    Outcome first, outcome;
    const int32_t first_steps = fixed < 0 ? kLearningSteps : kMixingSteps;
    for (int32_t step = 0; step < first_steps; ++step) Step(fixed, first);
    for (int32_t step = 0; step < steps; ++step) Step(fixed, outcome);
    return outcome;
  }

 private:
  static constexpr int32_t kMaxDrafts = 8;
  static constexpr int32_t kPrompt = 12;
  static constexpr int32_t kLearningSteps = 1000;
  static constexpr int32_t kMixingSteps = 100;

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
    candidate.acceptance = speculation_.EstimateAcceptance(sequence.acceptance);
    // A sequence does not know when it will end; its bound is far beyond that.
    candidate.max_drafts = kMaxDrafts;
    candidate.draft_lag = sequence.lag;
    candidate.expected_tokens = speculation_.ExpectOutput(200);
    candidate.probe = sequence.probe;
    return candidate;
  }

  void Step(int32_t fixed, Outcome& outcome) {
    const auto batch = static_cast<int32_t>(running_.size());
    times_.Clear();
    candidates_.clear();
    for (const Running& sequence : running_) candidates_.push_back(CandidateOf(sequence));
    // As an engine plans it (MakeSchedulerLimits).
    int32_t max_drafts = std::min(batch, 16) * kMaxDrafts;
    if (fixed < 0) {
      speculation_.Choose(candidates_, batch, max_drafts);
    } else {
      for (DraftCandidate& candidate : candidates_) {
        candidate.num_drafts = std::min(fixed, max_drafts);
        max_drafts -= candidate.num_drafts;
      }
    }
    const bool drafts = std::ranges::any_of(
        candidates_, [](const DraftCandidate& candidate) { return candidate.num_drafts > 0; });
    slowdown_ = disturbed_steps_-- > 0 && drafts ? 2.0 : 1.0;
    const double seconds = PassSeconds();
    const double step_seconds = seconds + overhead_;
    outcome.seconds += step_seconds;
    const double before = outcome.tokens;
    for (size_t i = 0; i < running_.size(); ++i) Land(running_[i], candidates_[i], outcome);
    if (drafts) times_.round_seconds = seconds;
    if (fixed < 0) {
      speculation_.ObserveStep(times_, step_seconds, batch,
                               static_cast<int32_t>(outcome.tokens - before));
    }
  }

  double PassSeconds() {
    double seconds = 0.0;
    int32_t target_rows = 0;
    for (int32_t position = 1; position <= kMaxDrafts; ++position) {
      PassTime pass = {.model = ModelIndex::kDraft};
      for (const DraftCandidate& candidate : candidates_) {
        if (candidate.num_drafts < position) continue;
        ++pass.rows;
        if (position == 1) pass.catch_up += candidate.draft_lag - 1;
      }
      if (pass.rows > 0) seconds += Run(pass);
    }
    for (const DraftCandidate& candidate : candidates_) target_rows += 1 + candidate.num_drafts;
    const bool verifies = target_rows > static_cast<int32_t>(candidates_.size());
    times_.complete = true;
    return seconds + Run({.model = ModelIndex::kTarget, .rows = target_rows, .verifies = verifies});
  }

  double Run(PassTime pass) {
    const double seconds =
        slowdown_ * (true_.Seconds(pass.model, pass.rows) + true_.CatchUpSeconds(pass.catch_up));
    pass.seconds = seconds * std::uniform_real_distribution<double>(0.85, 1.15)(random_);
    times_.passes.push_back(pass);
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
    speculation_.ObserveDrafts(proposed, accepted);
    if (proposed > 0 && !sequence.drafted && sequence.emitted > 0) ++outcome.starts;
    sequence.drafted = proposed > 0;
    sequence.lag = proposed == 0 ? sequence.lag + 1 : (accepted == proposed ? 2 : 1);
    sequence.emitted += emitted;
    sequence.left -= emitted;
    outcome.tokens += emitted;
    if (sequence.left > 0) return;
    speculation_.ObserveOutput(sequence.emitted);
    sequence = Fresh();
  }

  const Population population_;
  const CostTable true_;
  const double overhead_;
  int32_t disturbed_steps_ = 0;
  double slowdown_ = 1.0;
  Speculation speculation_;
  std::mt19937 random_{7};
  std::vector<Running> running_;
  std::vector<DraftCandidate> candidates_;
  StepTimes times_;  // of the current step
};

constexpr Population kPopulations[] = {{0.2, 0.2}, {0.4, 0.4},   {0.6, 0.6},  {0.8, 0.8},
                                       {0.9, 0.9}, {0.95, 0.95}, {0.3, 0.95}, {0.0, 0.95}};
constexpr int32_t kBatches[] = {1, 2, 4, 8, 16, 32, 64, 192};

TEST(SpeculationInAWorld, IsNeverSlowerThanPlainAndNearlyAsFastAsTheBestFixedLength) {
  for (const World& world : Worlds()) {
    for (const int32_t batch : kBatches) {
      for (const Population& population : kPopulations) {
        const int32_t steps = 400 + 8000 / batch;
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
  const CostTable exact = PricesOf(world);
  World measured = {world.name, {}, {}, world.overhead, exact.CatchUpSeconds(1) * error(random)};
  for (const int32_t rows :
       {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 128, 256, 512, 1024}) {
    measured.target.push_back({rows, exact.Seconds(ModelIndex::kTarget, rows) * error(random)});
    measured.draft.push_back({rows, exact.Seconds(ModelIndex::kDraft, rows) * error(random)});
  }
  return measured;
}

TEST(SpeculationInAWorld, IsNotSlowerThanPlainWherePricesWereMeasuredWrong) {
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
TEST(SpeculationInAWorld, FindsOutWhatTheStartMeasuredWrong) {
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
          rates.push_back(Simulation(world, measured, batch, population).Run(1000, -1).Rate());
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

// The first rounds were slow for a reason that has gone: drafting is tried again within seconds.
TEST(SpeculationInAWorld, RoundsOnABusyMachineDoNotDecideForLong) {
  for (const World& world : Worlds()) {
    for (const int32_t batch : {4, 16}) {
      const Population population = {0.9, 0.9};
      double best = Simulation(world, batch, population).PlainRate();
      for (const int32_t fixed : {1, 2, 3, 4, 6, 8}) {
        best = std::max(best, Simulation(world, batch, population).Run(1000, fixed).Rate());
      }
      Simulation simulation(world, batch, population);
      simulation.DisturbRounds(300);
      simulation.Run(2000, -1);
      EXPECT_GE(simulation.Run(1000, -1).Rate(), 0.85 * best) << world.name << ", batch " << batch;
    }
  }
}

// Wherever the acceptance puts the price of drafting, including near break-even.
TEST(SpeculationInAWorld, DoesNotGoBackAndForth) {
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

}  // namespace
}  // namespace tandem
