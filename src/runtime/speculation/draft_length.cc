#include "runtime/speculation/draft_length.h"

#include <algorithm>

#include "ops/round_rules.h"

namespace tandem {
namespace {

using ops::rules::kRoundLag;  // the first draft step of a round carries these tokens

// A try has this many rounds. It could pay if it would where rounds took only this share of the
// time that they are expected to take, and may take this share of the time since the last.
constexpr int32_t kTryRounds = 16;
constexpr double kTryHope = 0.75;
constexpr double kTryShare = 0.003;
// Every try halves that share, down to the least, until drafting has paid for a while. The first
// try may take as long as this many plain steps.
constexpr double kLeastTryShare = kTryShare / 16;
constexpr double kFirstTrySteps = 16.0;
// The share of the doubt that a step without drafts removes, and one with drafts that pay.
constexpr double kDoubtForgotten = 1.0 / 2048;
constexpr double kDoubtLost = 1.0 / 8;
// While steps draft, one in this many decodes plainly: nothing else tells the cost of a plain pass.
constexpr int32_t kPlainEvery = 128;
// Losing rounds raise the price of drafting by this share each, up to the limit.
constexpr double kDoubt = 1.0 / 32;
constexpr double kMostDoubt = 1.5;
// Drafting must promise this much over plain decoding: estimates err, and a tie should not draft.
constexpr double kMargin = 1.03;
// The value of the drafts of a sequence that must catch up first. Stopping costs nothing, but
// starting again does: without the difference a sequence near break-even would alternate between
// both and pay each time.
constexpr double kEntryShare = 0.93;
// A catch-up must pay off within this many tokens, however long the answer may be.
constexpr double kPayOffTokens = 64.0;
// Share of the time since the last draft that a probe may cost.
constexpr double kProbeShare = 0.005;
constexpr double kHopefulAcceptance = 0.9;

bool MustCatchUp(const DraftCandidate& candidate) { return candidate.draft_lag > kRoundLag; }

// Cost of the draft model's work before the candidate's first draft, beyond the one or two tokens
// that every round leaves; per token that the sequence gains from it.
double CatchUpPerToken(const DraftCandidate& candidate, const CostTable& costs) {
  if (!MustCatchUp(candidate)) return 0.0;
  return costs.CatchUpSeconds(candidate.draft_lag - kRoundLag) /
         std::clamp(candidate.expected_tokens, 1.0, kPayOffTokens);
}

// The target's seconds for the step's tokens and `drafts` more rows, without those of its prompts.
// Never less than without prompts: between two points that were measured wrong, rows after the
// prompts may look free, and no pass with prompts corrects that.
double StepSeconds(int32_t plain_rows, int32_t base_rows, int32_t drafts, const CostTable& costs) {
  const auto target = [&](int32_t rows) { return costs.Seconds(ModelIndex::kTarget, rows); };
  const double prompts = target(base_rows) - target(plain_rows);
  return std::max(target(base_rows + drafts) - prompts, target(plain_rows + drafts));
}

void LearnDoubt(bool drafts, double round_gain, double& doubt) {
  if (!drafts) {
    doubt += kDoubtForgotten * (1.0 - doubt);
  } else if (round_gain < 1.0) {
    doubt = std::min(doubt * (1.0 + kDoubt), kMostDoubt);
  } else {
    doubt += kDoubtLost * (1.0 - doubt);
  }
}

}  // namespace

DraftLengthChooser::DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, bool tries)
    : tries_(tries), longest_(max_draft_len), rows_at_(static_cast<size_t>(max_draft_len) + 1) {
  const size_t most = static_cast<size_t>(max_candidates) * static_cast<size_t>(max_draft_len);
  drafts_.reserve(most);
  verify_seconds_.reserve(most);
  experience_.fill({.try_steps = kFirstTrySteps, .try_share = kTryShare});
}

void DraftLengthChooser::ListDrafts(std::span<const DraftCandidate> candidates) {
  drafts_.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    double worth = MustCatchUp(candidates[i]) ? kEntryShare : 1.0;
    for (int32_t j = 1; j <= std::min(candidates[i].max_drafts, longest_); ++j) {
      worth *= candidates[i].acceptance;
      drafts_.push_back({worth, static_cast<int32_t>(i), j});
    }
  }
  // Ties: earlier positions first, so that a sequence's drafts stay without gaps.
  std::sort(drafts_.begin(), drafts_.end(), [](const Draft& a, const Draft& b) {
    if (a.worth != b.worth) return a.worth > b.worth;
    if (a.position != b.position) return a.position < b.position;
    return a.candidate < b.candidate;
  });
}

// The round of the best goodput with at least `fewest` drafts; of none if there are not as many. A
// pass of the draft model costs something however few rows it has: drafts in the order of their
// worth alone would end in many passes for a few sequences, so every number of passes is tried.
DraftLengthChooser::Round DraftLengthChooser::BestRound(std::span<DraftCandidate> candidates,
                                                        const DraftContext& context,
                                                        const CostTable& costs, size_t fewest) {
  ListDrafts(candidates);
  for (DraftCandidate& candidate : candidates) {
    candidate.catch_up_per_token = CatchUpPerToken(candidate, costs);
  }
  const auto plain_rows = static_cast<int32_t>(candidates.size());
  const double plain_seconds = costs.Seconds(ModelIndex::kTarget, plain_rows);
  const size_t affordable =
      std::min(drafts_.size(), static_cast<size_t>(std::max(context.max_drafts, 0)));
  verify_seconds_.resize(affordable);
  for (size_t i = 0; i < affordable; ++i) {
    const auto drafts = static_cast<int32_t>(i + 1);
    // Passes of other numbers of rows share a factor: never less than without drafts.
    verify_seconds_[i] =
        std::max(plain_seconds, costs.VerifyFactor(plain_rows + drafts) *
                                    StepSeconds(plain_rows, context.base_rows, drafts, costs));
  }
  Round best;
  for (int32_t passes = 1; passes <= longest_; ++passes) {
    const Round round = BestRoundOf(passes, candidates, context.overhead, costs, fewest);
    if (round.Goodput() > best.Goodput()) best = round;
  }
  return best;
}

DraftLengthChooser::Round DraftLengthChooser::BestRoundOf(
    int32_t passes, std::span<const DraftCandidate> candidates, double overhead,
    const CostTable& costs, size_t fewest) {
  std::fill(rows_at_.begin(), rows_at_.end(), 0);
  Round best;
  Round round = {.passes = passes, .tokens = static_cast<double>(candidates.size())};
  double draft_seconds = 0.0;
  for (const Draft& draft : drafts_) {
    if (round.drafts == verify_seconds_.size()) break;
    if (draft.position > passes) continue;
    const DraftCandidate& candidate = candidates[static_cast<size_t>(draft.candidate)];
    int32_t& rows = rows_at_[static_cast<size_t>(draft.position)];
    draft_seconds +=
        costs.Seconds(ModelIndex::kDraft, rows + 1) - costs.Seconds(ModelIndex::kDraft, rows);
    double emitted = draft.worth;
    if (draft.position == 1) {
      emitted += 1.0;  // the first draft also carries the round's own token
      draft_seconds += costs.CatchUpSeconds(std::min(candidate.draft_lag, kRoundLag) - 1);
    }
    round.catch_up += candidate.catch_up_per_token * emitted;
    ++rows;
    ++round.drafts;
    round.tokens += draft.worth;
    round.seconds = verify_seconds_[round.drafts - 1] + draft_seconds + round.catch_up + overhead;
    if (round.drafts >= fewest && round.Goodput() > best.Goodput()) best = round;
  }
  return best;
}

// Every sequence that can draft does.
DraftLengthChooser::Round DraftLengthChooser::BestTry(std::span<DraftCandidate> candidates,
                                                      const DraftContext& context,
                                                      const CostTable& costs) {
  const auto able = std::ranges::count_if(
      candidates, [](const DraftCandidate& candidate) { return candidate.max_drafts > 0; });
  return BestRound(candidates, context, costs, static_cast<size_t>(able));
}

// The hope fades with the rounds, as what is expected rests on them.
bool DraftLengthChooser::CouldPay(const Round& tried, const Round& plain, int32_t rounds_left) {
  const double hope = 1.0 + (kTryHope - 1.0) * rounds_left / kTryRounds;
  return tried.Goodput() > hope * kMargin * plain.Goodput();
}

// At least as much as a plain step, or tries near break-even would never end.
double DraftLengthChooser::PriceOfTry(const Round& tried, const Round& plain,
                                      std::span<const DraftCandidate> candidates,
                                      const CostTable& costs) {
  const double plain_seconds = tried.tokens / plain.Goodput();
  double price = kTryRounds * std::max(tried.seconds - tried.catch_up - plain_seconds, 0.0);
  for (const DraftCandidate& candidate : candidates) {
    if (candidate.max_drafts == 0) continue;
    price += costs.CatchUpSeconds(std::max(candidate.draft_lag - kRoundLag, 0));
  }
  return std::max(price, plain.seconds);
}

// The first round of a try; of no drafts if none begins.
DraftLengthChooser::Round DraftLengthChooser::BeginTry(const Round& plain,
                                                       std::span<DraftCandidate> candidates,
                                                       const DraftContext& context,
                                                       const CostTable& costs,
                                                       Experience& experience) {
  experience.try_steps += experience.try_share;
  if (experience.try_steps < 1.0) return plain;
  const Round tried = BestTry(candidates, context, costs);
  if (!CouldPay(tried, plain, kTryRounds)) return plain;
  const double price = PriceOfTry(tried, plain, candidates, costs);
  if (price > experience.try_steps * plain.seconds) return plain;
  experience.try_steps = 0.0;
  experience.try_share = std::max(experience.try_share / 2, kLeastTryShare);
  experience.try_rounds = kTryRounds;
  return tried;
}

bool DraftLengthChooser::Choose(std::span<DraftCandidate> candidates, const DraftContext& context,
                                const CostTable& costs) {
  for (DraftCandidate& candidate : candidates) candidate.num_drafts = 0;
  const auto plain_rows = static_cast<int32_t>(candidates.size());
  const double plain_seconds = costs.Seconds(ModelIndex::kTarget, plain_rows);
  // Without a measured target every draft looks free, so none is used.
  if (plain_seconds <= 0.0) return false;
  const Round plain = {.tokens = static_cast<double>(plain_rows),
                       .seconds = plain_seconds + context.overhead};
  Experience& experience = experience_[RowBucket(plain_rows)];
  Round chosen;
  if (experience.try_rounds > 0) {
    chosen = BestTry(candidates, context, costs);
    if (!CouldPay(chosen, plain, experience.try_rounds)) chosen = plain;
    if (chosen.drafts == 0) experience.try_rounds = 0;
  } else {
    chosen = BestRound(candidates, context, costs, 1);
    if (chosen.drafts == 0) return false;
    if (chosen.Goodput() <= plain.Goodput() * kMargin * experience.doubt) chosen = plain;
    LearnDoubt(chosen.drafts > 0, context.round_gain, experience.doubt);
    if (chosen.drafts == 0 && tries_) {
      chosen = BeginTry(plain, candidates, context, costs, experience);
    }
  }
  const bool tries = experience.try_rounds > 0;
  if (tries) --experience.try_rounds;
  experience.steps_drafting = chosen.drafts > 0 ? experience.steps_drafting + 1 : 0;
  if (experience.steps_drafting >= kPlainEvery && context.base_rows == plain_rows) {
    experience.steps_drafting = 0;
    experience.try_share = kTryShare;
    return tries;
  }
  size_t left = chosen.drafts;
  for (size_t i = 0; left > 0; ++i) {
    if (drafts_[i].position > chosen.passes) continue;
    ++candidates[static_cast<size_t>(drafts_[i].candidate)].num_drafts;
    --left;
  }
  if (chosen.drafts == 0) ChooseProbe(candidates, context, costs);
  return tries;
}

// One draft for the sequence that has waited longest, if good drafts of all sequences would pay,
// its own are not known to be good, and it is cheap compared to the time since any sequence last
// drafted: all probes together take at most kProbeShare of the time.
void DraftLengthChooser::ChooseProbe(std::span<DraftCandidate> candidates,
                                     const DraftContext& context, const CostTable& costs) const {
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
  const double hopeful = StepSeconds(plain_rows, context.base_rows, able, costs) +
                         costs.Seconds(ModelIndex::kDraft, able);
  const bool could_pay = (plain_rows + kHopefulAcceptance * able) * plain > plain_rows * hopeful;
  const double price = StepSeconds(plain_rows, context.base_rows, 1, costs) - plain +
                       costs.Seconds(ModelIndex::kDraft, 1) +
                       costs.CatchUpSeconds(probed->draft_lag - 1);
  const double allowed = kProbeShare * static_cast<double>(context.steps_idle) * plain;
  if (could_pay && price <= allowed) probed->num_drafts = 1;
}

}  // namespace tandem
