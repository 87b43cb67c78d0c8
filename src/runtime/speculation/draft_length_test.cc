#include "runtime/speculation/draft_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/speculation/testing/made_up_costs.h"

namespace tandem {
namespace {

constexpr bool kNoTries = false;  // what is expected is known to be right

DraftCandidate Candidate(double acceptance, int32_t max_drafts = 8) {
  DraftCandidate candidate;
  candidate.acceptance = acceptance;
  candidate.max_drafts = max_drafts;
  candidate.expected_tokens = 100;
  return candidate;
}

constexpr RoundContext kSixteen = {.base_rows = 16, .max_drafts = 1000};
constexpr int32_t kLongIdle = 100;  // steps: a probe is paid for

std::vector<int32_t> Choose(std::vector<DraftCandidate> candidates, const CostTable& costs,
                            int32_t base_rows = 0, int32_t max_drafts = 1000) {
  DraftLengthChooser chooser(64, 8, kNoTries);
  if (base_rows == 0) base_rows = static_cast<int32_t>(candidates.size());
  chooser.Choose(candidates, {.base_rows = base_rows, .max_drafts = max_drafts},
                 {.steps_idle = kLongIdle}, costs);
  std::vector<int32_t> lengths;
  for (const DraftCandidate& candidate : candidates) lengths.push_back(candidate.num_drafts);
  return lengths;
}

int32_t ChooseOne(double acceptance, const CostTable& costs, int32_t max_drafts = 8) {
  return Choose({Candidate(acceptance, max_drafts)}, costs)[0];
}

TEST(DraftLengthChooser, GrowsWithAcceptance) {
  const CostTable costs = MemoryBoundCosts();
  int32_t last = 0;
  for (double acceptance = 0.0; acceptance <= 1.0; acceptance += 0.05) {
    const int32_t length = ChooseOne(acceptance, costs);
    EXPECT_GE(length, last) << acceptance;
    last = length;
  }
  EXPECT_EQ(last, 8);
}

TEST(DraftLengthChooser, IsZeroWhereDraftsSeldomHold) {
  EXPECT_EQ(ChooseOne(0.05, MemoryBoundCosts()), 0);
  EXPECT_GT(ChooseOne(0.6, MemoryBoundCosts()), 0);
}

TEST(DraftLengthChooser, IsZeroWhereRowsOrDraftsAreExpensive) {
  EXPECT_EQ(ChooseOne(0.9, MemoryBoundCosts(1.0)), 0);        // a verified row costs a whole pass
  EXPECT_EQ(ChooseOne(0.9, MemoryBoundCosts(0.01, 1.0)), 0);  // a draft costs as much as the target
}

TEST(DraftLengthChooser, FallsWithTheBatchWhereRowsBindTheTarget) {
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

// Expected tokens per second of a step in which sequence i drafts lengths[i] tokens.
double Goodput(const std::vector<DraftCandidate>& candidates, const std::vector<int32_t>& lengths,
               const CostTable& costs) {
  auto rows = static_cast<int32_t>(candidates.size());
  double tokens = rows, seconds = 0.0;
  for (int32_t position = 1; position <= 8; ++position) {
    int32_t drafting = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (lengths[i] < position) continue;
      ++drafting;
      tokens += std::pow(candidates[i].acceptance, position);
    }
    seconds += costs.Seconds(ModelIndex::kDraft, drafting);
    rows += drafting;
  }
  return tokens / (seconds + costs.Seconds(ModelIndex::kTarget, rows));
}

TEST(DraftLengthChooser, NeverChoosesLessGoodputThanPlainDecoding) {
  for (const double target_row : {0.0, 0.01, 0.1, 0.5}) {
    for (const double draft : {0.01, 0.1, 0.5}) {
      const CostTable costs = MemoryBoundCosts(target_row, draft);
      for (const double acceptance : {0.1, 0.4, 0.7, 0.95}) {
        for (const int32_t batch : {1, 3, 17}) {
          const auto count = static_cast<size_t>(batch);
          const std::vector candidates(count, Candidate(acceptance));
          EXPECT_GE(Goodput(candidates, Choose(candidates, costs), costs),
                    batch / costs.Seconds(ModelIndex::kTarget, batch));
        }
      }
    }
  }
}

// A pass of the draft model for the one sequence that is predicted far costs nearly as much as one
// for all.
TEST(DraftLengthChooser, IsAsGoodAsEveryCommonLength) {
  for (const double draft : {0.1, 0.2, 0.3}) {
    const CostTable costs = MemoryBoundCosts(0.01, draft);
    for (const double others : {0.5, 0.7, 0.9}) {
      std::vector<DraftCandidate> candidates(16, Candidate(others));
      for (size_t i = 0; i < candidates.size(); i += 4) candidates[i].acceptance = 0.97;
      const double chosen = Goodput(candidates, Choose(candidates, costs), costs);
      for (int32_t length = 0; length <= 8; ++length) {
        const std::vector<int32_t> common(candidates.size(), length);
        EXPECT_GE(chosen * 1.03, Goodput(candidates, common, costs))
            << "draft " << draft << ", acceptance " << others << ", length " << length;
      }
    }
  }
}

TEST(DraftLengthChooser, GivesMoreToTheSequenceThatIsPredicted) {
  const auto lengths = Choose({Candidate(0.9), Candidate(0.3), Candidate(0.0)}, MemoryBoundCosts());
  EXPECT_GT(lengths[0], lengths[1]);
  EXPECT_EQ(lengths[2], 0);
}

TEST(DraftLengthChooser, KeepsToItsBounds) {
  EXPECT_EQ(ChooseOne(1.0, MemoryBoundCosts(), 3), 3);
  EXPECT_EQ(ChooseOne(1.0, MemoryBoundCosts(), 0), 0);
  const auto lengths = Choose(std::vector(4, Candidate(1.0)), MemoryBoundCosts(), 4, 10);
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0), 10);
}

TEST(DraftLengthChooser, PricesACatchUpByWhatIsLeftToGainFromIt) {
  const CostTable costs = MemoryBoundCosts(0.01, 0.05, 0.005);
  DraftCandidate far_behind = Candidate(0.8, 3);
  far_behind.draft_lag = 500;  // 2.5 seconds
  far_behind.expected_tokens = 4;
  EXPECT_EQ(Choose({far_behind}, costs)[0], 0);
  far_behind.expected_tokens = 400;
  EXPECT_GT(Choose({far_behind}, costs)[0], 0);
}

// A prompt of 12 tokens costs the draft as much with others' rows as alone: 16 answers of few
// tokens never earn it back, 16 long ones do.
TEST(DraftLengthChooser, ShortAnswersDoNotPayForTheDraftsPrompt) {
  const CostTable costs = MemoryBoundCosts(0.01, 0.05, 0.01);
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
TEST(DraftLengthChooser, PromptsInTheStepMakeNoDraftWorthwhile) {
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
TEST(DraftLengthChooser, ADisturbedPriceBesideAPromptMakesNoDraftWorthwhile) {
  CostTable costs;
  const CostTable::Point target[] = {{1, 1.0}, {46, 46.0}, {52, 46.1}, {1000, 1000.0}};
  const CostTable::Point draft[] = {{1, 0.01}, {1000, 10.0}};
  costs.Set(ModelIndex::kTarget, target);
  costs.Set(ModelIndex::kDraft, draft);
  const auto lengths = Choose(std::vector(16, Candidate(0.95)), costs, 46, 10);
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0), 0);
}

TEST(DraftLengthChooser, DraftsBesideAPromptWhereRowsAreFree) {
  EXPECT_EQ(Choose({Candidate(0.9)}, MemoryBoundCosts(0.0), 200)[0],
            ChooseOne(0.9, MemoryBoundCosts(0.0)));
}

TEST(DraftLengthChooser, ProbesNowAndThenButOnlyWhereItCouldPay) {
  DraftCandidate idle = Candidate(0.01);
  idle.draft_lag = 17;
  idle.probe.rounds_idle = 15;
  EXPECT_EQ(Choose({idle}, MemoryBoundCosts())[0], 0);
  idle.probe.rounds_idle = 16;
  EXPECT_EQ(Choose({idle}, MemoryBoundCosts())[0], 1);
  EXPECT_EQ(Choose({idle}, MemoryBoundCosts(1.0))[0], 0);
  idle.probe.AfterRound(1, 0);
  EXPECT_EQ(idle.probe.interval, 32);
  idle.probe.AfterRound(1, 1);
  EXPECT_EQ(idle.probe.interval, 16);
}

TEST(DraftLengthChooser, DoesNotProbeWhatItKnows) {
  DraftCandidate idle = Candidate(0.95, 1);
  idle.draft_lag = 400;  // good drafts, but a catch-up that a short rest never pays
  idle.expected_tokens = 2;
  idle.probe.rounds_idle = 400;
  EXPECT_EQ(Choose({idle}, MemoryBoundCosts(0.01, 0.05, 0.005))[0], 0);
}

// Steps of sequences whose drafts are never accepted, with a draft whose catch-up costs in
// proportion to the missed tokens.
TEST(DraftLengthChooser, ProbesTakeASmallShareOfTheTime) {
  const CostTable costs = MemoryBoundCosts(0.02, 0.05, 0.0005);
  DraftLengthChooser chooser(64, 8, kNoTries);
  std::vector<DraftCandidate> candidates(16, Candidate(0.01));
  double probes = 0.0, plain = 0.0;
  int32_t probed = 0, idle = 0;
  for (int32_t step = 0; step < 5000; ++step) {
    chooser.Choose(candidates, kSixteen, {.steps_idle = idle++}, costs);
    plain += costs.Seconds(ModelIndex::kTarget, 16);
    for (DraftCandidate& candidate : candidates) {
      if (candidate.num_drafts > 0) {
        probes += costs.Seconds(ModelIndex::kDraft, 1) +
                  costs.CatchUpSeconds(candidate.draft_lag - 1) +
                  costs.Seconds(ModelIndex::kTarget, 17) - costs.Seconds(ModelIndex::kTarget, 16);
        ++probed;
        idle = 0;
      }
      candidate.draft_lag = candidate.num_drafts > 0 ? 1 : candidate.draft_lag + 1;
      candidate.probe.AfterRound(candidate.num_drafts, 0);
    }
  }
  EXPECT_GT(probed, 16);
  EXPECT_LE(probes, 0.005 * plain);
}

// 16 sequences together emit a sixth more tokens per second with drafts of three, and each alone
// fewer; and what their draft models have missed takes more than they are likely to gain.
CostTable BetterTogether() {
  CostTable costs;
  const CostTable::Point target[] = {{1, 1.0}, {16, 2.0}, {64, 5.0}, {1064, 70.0}};
  const CostTable::Point draft[] = {{1, 0.2}, {16, 0.3}, {1016, 7.0}};
  costs.Set(ModelIndex::kTarget, target);
  costs.Set(ModelIndex::kDraft, draft);
  costs.SetCatchUp(0.01);
  return costs;
}

// 16 sequences whose catch-up keeps each of them from drafting.
std::vector<DraftCandidate> Lagging(int32_t max_drafts) {
  DraftCandidate candidate = Candidate(0.9, max_drafts);
  candidate.draft_lag = 60;
  candidate.expected_tokens = 20;
  return std::vector(16, candidate);
}

int32_t NumDrafting(const std::vector<DraftCandidate>& candidates) {
  return static_cast<int32_t>(std::ranges::count_if(
      candidates, [](const DraftCandidate& candidate) { return candidate.num_drafts > 0; }));
}

TEST(DraftLengthChooser, AllTryTogetherWhatNoneWouldStartAlone) {
  const CostTable costs = BetterTogether();
  std::vector<DraftCandidate> candidates = Lagging(3);
  DraftLengthChooser knows(64, 8, kNoTries);
  EXPECT_FALSE(knows.Choose(candidates, kSixteen, {}, costs));
  EXPECT_EQ(NumDrafting(candidates), 0);
  DraftLengthChooser tries(64, 8);
  int32_t rounds = 0;
  while (rounds < 100 && tries.Choose(candidates, kSixteen, {}, costs)) {
    ++rounds;
    EXPECT_EQ(NumDrafting(candidates), 16);
    for (DraftCandidate& candidate : candidates) candidate.draft_lag = 2;
  }
  EXPECT_EQ(rounds, 16);
  EXPECT_EQ(NumDrafting(candidates), 16) << "it pays, and so it goes on";
}

TEST(DraftLengthChooser, LosingTriesEndSoonAndTakeASmallShareOfTheTime) {
  const CostTable costs = BetterTogether();
  DraftLengthChooser chooser(64, 8);
  std::vector<DraftCandidate> candidates(16, Candidate(0.5, 3));
  constexpr int32_t kSteps = 20000;
  double catch_ups = 0.0;
  int32_t tries = 0, rounds = 0;
  bool was_try = false;
  for (int32_t step = 0; step < kSteps; ++step) {
    const bool is_try = chooser.Choose(candidates, kSixteen, {}, costs);
    if (is_try && !was_try) ++tries;
    if (is_try) ++rounds;
    was_try = is_try;
    for (DraftCandidate& candidate : candidates) {
      if (is_try) catch_ups += costs.CatchUpSeconds(candidate.draft_lag - 1);
      candidate.draft_lag = is_try ? 1 : candidate.draft_lag % 40 + 1;
    }
  }
  EXPECT_GT(tries, 2);
  EXPECT_LT(rounds, 10 * tries);
  const double plain = costs.Seconds(ModelIndex::kTarget, 16);
  EXPECT_LT(catch_ups + 0.2 * plain * rounds, (16 + 0.003 * kSteps) * plain);
}

TEST(DraftLengthChooser, TriesWithWhatTheStepHasRoomFor) {
  const CostTable costs = BetterTogether();
  std::vector<DraftCandidate> candidates = Lagging(1);
  DraftLengthChooser chooser(64, 8);
  EXPECT_TRUE(chooser.Choose(candidates, {.base_rows = 16, .max_drafts = 12}, {}, costs));
  EXPECT_EQ(NumDrafting(candidates), 12);
}

// Whatever goes on: tries, probes, plain steps, batches that come and go.
TEST(DraftLengthChooser, KeepsToItsBoundsInEveryStep) {
  std::mt19937 random{11};
  const auto draw = [&](int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random);
  };
  for (const CostTable& costs : {BetterTogether(), MemoryBoundCosts(), MemoryBoundCosts(0.5)}) {
    DraftLengthChooser chooser(64, 8);
    int32_t batch = 16;
    for (int32_t step = 0; step < 20000; ++step) {
      if (step % 50 == 0) batch = draw(1, 64);
      std::vector<DraftCandidate> candidates(static_cast<size_t>(batch));
      for (DraftCandidate& candidate : candidates) {
        candidate.acceptance = 0.05 * draw(0, 20);
        candidate.max_drafts = draw(0, 2) * draw(0, 8);
        candidate.draft_lag = draw(1, 3) == 1 ? draw(1, 500) : draw(1, 2);
        candidate.expected_tokens = draw(1, 100);
        candidate.probe.rounds_idle = draw(0, 100);
      }
      const int32_t most = std::max(0, draw(-20, 100));
      chooser.Choose(candidates, {.base_rows = batch + draw(0, 1) * 40, .max_drafts = most},
                     {.steps_idle = draw(0, 10000), .round_gain = 0.1 * draw(5, 20)}, costs);
      int32_t sum = 0;
      for (const DraftCandidate& candidate : candidates) {
        ASSERT_LE(candidate.num_drafts, std::min(candidate.max_drafts, 8)) << step;
        sum += candidate.num_drafts;
      }
      ASSERT_LE(sum, most) << step;
    }
  }
}

TEST(DraftLengthChooser, GoesOnWithWhatItWouldNotStart) {
  // Goodput of one draft that is accepted 7 times in 10: 1.7 tokens in 1.62 seconds, against 1
  // in 1.
  const CostTable costs = MemoryBoundCosts(0.57, 0.05);
  DraftCandidate drafting = Candidate(0.7, 1);
  EXPECT_EQ(Choose({drafting}, costs)[0], 1);
  drafting.draft_lag = 3;
  EXPECT_EQ(Choose({drafting}, costs)[0], 0);
  EXPECT_EQ(Choose({Candidate(0.6, 1)}, costs)[0], 0);
}

// Only plain steps tell the cost of a plain pass, and one that has a prompt in it tells nothing.
TEST(DraftLengthChooser, DecodesPlainlyNowAndThenWhileItDrafts) {
  const CostTable costs = MemoryBoundCosts();
  DraftLengthChooser chooser(64, 8, kNoTries);
  std::vector<DraftCandidate> candidates = {Candidate(0.9)};
  const auto count_plain = [&](int32_t steps, int32_t base_rows) {
    int32_t plain = 0;
    for (int32_t step = 0; step < steps; ++step) {
      chooser.Choose(candidates, {.base_rows = base_rows, .max_drafts = 1000}, {}, costs);
      plain += candidates[0].num_drafts == 0 ? 1 : 0;
      candidates[0].draft_lag = candidates[0].num_drafts == 0 ? 3 : 2;
    }
    return plain;
  };
  EXPECT_EQ(count_plain(1280, 1), 10);
  EXPECT_EQ(count_plain(1280, 1 + 20), 0);
  EXPECT_EQ(count_plain(2, 1), 1) << "made up for after the prompts";
}

}  // namespace
}  // namespace tandem
