#include "runtime/speculation/draft_length.h"

#include <algorithm>

#include "ops/round_rules.h"

namespace tandem {
namespace {

using ops::rules::kRoundLag;

// Drafting must promise this much over plain decoding: estimates err, and a tie should not draft.
constexpr double kMargin = 1.03;
// While steps draft, one in this many decodes plainly: nothing else tells the cost of a plain pass.
constexpr int32_t kPlainEvery = 128;
// Losing rounds raise the price of drafting by this share each, up to the limit.
constexpr double kDoubt = 1.0 / 32;
constexpr double kMostDoubt = 1.5;
// The share of the doubt that a step without drafts removes, and one with drafts that pay.
constexpr double kDoubtForgotten = 1.0 / 2048;
constexpr double kDoubtLost = 1.0 / 8;
// A try has this many rounds, and is worth making if it would pay with rounds that took this share
// of their price.
constexpr int32_t kTryRounds = 16;
constexpr double kTryHope = 0.75;
// Tries take at most this share of the time. Each one halves the share, down to the least, until
// drafting has paid for a while. The first may take as long as this many plain steps.
constexpr double kTryShare = 0.003;
constexpr double kLeastTryShare = kTryShare / 16;
constexpr double kFirstTrySteps = 16.0;
// Share of the time since the last draft that a probe may cost.
constexpr double kProbeShare = 0.005;
constexpr double kHopefulAcceptance = 0.9;

void LearnDoubt(bool drafts, double round_gain, double& doubt) {
  if (!drafts) {
    doubt += kDoubtForgotten * (1.0 - doubt);
  } else if (round_gain < 1.0) {
    doubt = std::min(doubt * (1.0 + kDoubt), kMostDoubt);
  } else {
    doubt += kDoubtLost * (1.0 - doubt);
  }
}

// Hope fades as measured rounds replace estimates.
bool CouldPay(const Round& tried, const Round& plain, int32_t rounds_left) {
  const double hope = 1.0 + (kTryHope - 1.0) * rounds_left / kTryRounds;
  return tried.Goodput() > hope * kMargin * plain.Goodput();
}

// Seconds that a try is expected to lose, with a catch-up of every sequence. At least a plain
// step's, or tries near break-even would never end.
double PriceOfTry(const Round& tried, const Round& plain,
                  std::span<const DraftCandidate> candidates, const CostTable& costs) {
  const double plain_seconds = tried.tokens / plain.Goodput();
  double price = kTryRounds * std::max(tried.seconds - tried.catch_up - plain_seconds, 0.0);
  for (const DraftCandidate& candidate : candidates) {
    if (candidate.max_drafts == 0) continue;
    price += costs.CatchUpSeconds(std::max(candidate.draft_lag - kRoundLag, 0));
  }
  return std::max(price, plain.seconds);
}

// One draft for the sequence that has waited longest, if good drafts of all sequences would pay,
// its own are not known to be good, and it is cheap compared to the time since any sequence last
// drafted: all probes together take at most kProbeShare of the time. The step must have room for
// it.
void ChooseProbe(std::span<DraftCandidate> candidates, int32_t base_rows, int64_t steps_idle,
                 const CostTable& costs) {
  DraftCandidate* probed = nullptr;
  int32_t able = 0;
  for (DraftCandidate& candidate : candidates) {
    if (candidate.max_drafts == 0) continue;
    ++able;
    if (candidate.probe.rounds_idle < candidate.probe.interval) continue;
    if (candidate.acceptance >= kHopefulAcceptance) continue;
    if (probed == nullptr || candidate.probe.rounds_idle > probed->probe.rounds_idle) {
      probed = &candidate;
    }
  }
  if (probed == nullptr) return;
  const auto plain_rows = static_cast<int32_t>(candidates.size());
  const double plain = costs.Seconds(ModelIndex::kTarget, plain_rows);
  const double hopeful =
      StepSeconds(plain_rows, base_rows, able, costs) + costs.Seconds(ModelIndex::kDraft, able);
  const bool could_pay = (plain_rows + kHopefulAcceptance * able) * plain > plain_rows * hopeful;
  const double price = StepSeconds(plain_rows, base_rows, 1, costs) - plain +
                       costs.Seconds(ModelIndex::kDraft, 1) +
                       costs.CatchUpSeconds(probed->draft_lag - 1);
  const double allowed = kProbeShare * static_cast<double>(steps_idle) * plain;
  if (could_pay && price <= allowed) probed->num_drafts = 1;
}

}  // namespace

DraftLengthChooser::DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, bool tries)
    : tries_(tries), planner_(max_candidates, max_draft_len) {
  experience_.fill({.try_steps = kFirstTrySteps, .try_share = kTryShare});
}

// The round to run; one of a try while try_rounds is not 0.
Round DraftLengthChooser::ChooseRound(const Round& plain, const RoundPlanner::Rounds& rounds,
                                      std::span<const DraftCandidate> candidates,
                                      const DraftHistory& history, const CostTable& costs,
                                      Experience& experience) const {
  if (experience.try_rounds > 0) {
    if (CouldPay(rounds.together, plain, experience.try_rounds)) return rounds.together;
    experience.try_rounds = 0;
    return plain;
  }
  const bool pays = rounds.best.Goodput() > plain.Goodput() * kMargin * experience.doubt;
  LearnDoubt(pays, history.round_gain, experience.doubt);
  if (pays) return rounds.best;
  experience.try_steps += experience.try_share;
  if (!tries_ || !CouldPay(rounds.together, plain, kTryRounds)) return plain;
  const double price = PriceOfTry(rounds.together, plain, candidates, costs);
  if (price > experience.try_steps * plain.seconds) return plain;
  experience.try_steps = 0.0;
  experience.try_share = std::max(experience.try_share / 2, kLeastTryShare);
  experience.try_rounds = kTryRounds;
  return rounds.together;
}

bool DraftLengthChooser::Choose(std::span<DraftCandidate> candidates, const RoundContext& context,
                                const DraftHistory& history, const CostTable& costs) {
  for (DraftCandidate& candidate : candidates) candidate.num_drafts = 0;
  const auto plain_rows = static_cast<int32_t>(candidates.size());
  const double plain_seconds = costs.Seconds(ModelIndex::kTarget, plain_rows);
  // Without a measured target every draft looks free, so none is used.
  if (plain_seconds <= 0.0) return false;
  Experience& experience = experience_[RowBucket(plain_rows)];
  const RoundPlanner::Rounds rounds = planner_.Plan(candidates, context, costs);
  if (rounds.best.drafts == 0) {
    experience.steps_drafting = 0;
    return false;
  }
  const Round plain = {.tokens = static_cast<double>(plain_rows),
                       .seconds = plain_seconds + context.overhead};
  const Round chosen = ChooseRound(plain, rounds, candidates, history, costs, experience);
  const bool tries = experience.try_rounds > 0;
  if (tries) --experience.try_rounds;
  experience.steps_drafting = chosen.drafts > 0 ? experience.steps_drafting + 1 : 0;
  if (experience.steps_drafting >= kPlainEvery) {
    experience.try_share = kTryShare;
    if (context.base_rows == plain_rows) {
      experience.steps_drafting = 0;
      return tries;
    }
  }
  planner_.Assign(chosen, candidates);
  if (chosen.drafts == 0) ChooseProbe(candidates, context.base_rows, history.steps_idle, costs);
  return tries;
}

}  // namespace tandem
