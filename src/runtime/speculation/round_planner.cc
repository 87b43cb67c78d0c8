#include "runtime/speculation/round_planner.h"

#include <algorithm>

#include "ops/round_rules.h"

namespace tandem {
namespace {

using ops::rules::kRoundLag;  // the first draft step of a round carries these tokens

// The value of the drafts of a sequence that must catch up first. Stopping costs nothing, but
// starting again does: without the difference a sequence near break-even would alternate between
// both and pay each time.
constexpr double kEntryShare = 0.93;
// A catch-up must pay off within this many tokens, however long the answer may be.
constexpr double kPayOffTokens = 64.0;

bool MustCatchUp(const DraftCandidate& candidate) { return candidate.draft_lag > kRoundLag; }

// Cost of the draft model's work before the candidate's first draft, beyond the one or two tokens
// that every round leaves; per token that the sequence gains from it.
double CatchUpPerToken(const DraftCandidate& candidate, const CostTable& costs) {
  if (!MustCatchUp(candidate)) return 0.0;
  return costs.CatchUpSeconds(candidate.draft_lag - kRoundLag) /
         std::clamp(candidate.expected_tokens, 1.0, kPayOffTokens);
}

// Every number up to 8, then steps of a quarter: planning should take microseconds.
int32_t NextPasses(int32_t passes, int32_t longest) {
  const int32_t next = passes + std::max(1, passes / 4);
  return passes < longest ? std::min(next, longest) : next;
}

}  // namespace

// Never less than without prompts: between two points that were measured wrong, rows after the
// prompts may look free, and no pass with prompts corrects that.
double StepSeconds(int32_t plain_rows, int32_t base_rows, int32_t drafts, const CostTable& costs) {
  const auto target = [&](int32_t rows) { return costs.Seconds(ModelIndex::kTarget, rows); };
  const double prompts = target(base_rows) - target(plain_rows);
  return std::max(target(base_rows + drafts) - prompts, target(plain_rows + drafts));
}

RoundPlanner::RoundPlanner(int32_t max_candidates, int32_t max_draft_len)
    : longest_(max_draft_len), rows_at_(static_cast<size_t>(max_draft_len) + 1) {
  const size_t most = static_cast<size_t>(max_candidates) * static_cast<size_t>(max_draft_len);
  drafts_.reserve(most);
  verify_seconds_.reserve(most);
  catch_up_per_token_.reserve(static_cast<size_t>(max_candidates));
}

void RoundPlanner::ListDrafts(std::span<const DraftCandidate> candidates) {
  drafts_.clear();
  able_ = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].max_drafts > 0) ++able_;
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

void RoundPlanner::PriceVerifying(int32_t plain_rows, const RoundContext& context,
                                  const CostTable& costs) {
  const double plain_seconds = costs.Seconds(ModelIndex::kTarget, plain_rows);
  verify_seconds_.resize(
      std::min(drafts_.size(), static_cast<size_t>(std::max(context.max_drafts, 0))));
  for (size_t i = 0; i < verify_seconds_.size(); ++i) {
    const auto drafts = static_cast<int32_t>(i + 1);
    // Passes of other numbers of rows share a factor: never less than without drafts.
    verify_seconds_[i] =
        std::max(plain_seconds, costs.VerifyFactor(plain_rows + drafts) *
                                    StepSeconds(plain_rows, context.base_rows, drafts, costs));
  }
}

RoundPlanner::Rounds RoundPlanner::Plan(std::span<const DraftCandidate> candidates,
                                        const RoundContext& context, const CostTable& costs) {
  ListDrafts(candidates);
  PriceVerifying(static_cast<int32_t>(candidates.size()), context, costs);
  catch_up_per_token_.clear();
  for (const DraftCandidate& candidate : candidates) {
    catch_up_per_token_.push_back(CatchUpPerToken(candidate, costs));
  }
  Rounds rounds;
  for (int32_t passes = 1; passes <= longest_; passes = NextPasses(passes, longest_)) {
    TryPasses(passes, candidates, context.overhead, costs, rounds);
  }
  return rounds;
}

void RoundPlanner::TryPasses(int32_t passes, std::span<const DraftCandidate> candidates,
                             double overhead, const CostTable& costs, Rounds& rounds) {
  std::fill(rows_at_.begin(), rows_at_.end(), 0);
  Round round = {.passes = passes, .tokens = static_cast<double>(candidates.size())};
  double draft_seconds = 0.0;
  const size_t fewest = std::min(able_, verify_seconds_.size());
  for (const Draft& draft : drafts_) {
    if (round.drafts == verify_seconds_.size()) break;
    if (draft.position > passes) continue;
    const auto index = static_cast<size_t>(draft.candidate);
    int32_t& rows = rows_at_[static_cast<size_t>(draft.position)];
    draft_seconds +=
        costs.Seconds(ModelIndex::kDraft, rows + 1) - costs.Seconds(ModelIndex::kDraft, rows);
    double emitted = draft.worth;
    if (draft.position == 1) {
      emitted += 1.0;  // the first draft also carries the round's own token
      draft_seconds += costs.CatchUpSeconds(std::min(candidates[index].draft_lag, kRoundLag) - 1);
    }
    ++rows;
    ++round.drafts;
    round.tokens += draft.worth;
    round.catch_up += catch_up_per_token_[index] * emitted;
    round.seconds = verify_seconds_[round.drafts - 1] + draft_seconds + round.catch_up + overhead;
    if (round.Goodput() > rounds.best.Goodput()) rounds.best = round;
    if (round.drafts >= fewest && round.Goodput() > rounds.together.Goodput()) {
      rounds.together = round;
    }
  }
}

void RoundPlanner::Assign(const Round& round, std::span<DraftCandidate> candidates) const {
  size_t left = round.drafts;
  for (size_t i = 0; left > 0; ++i) {
    if (drafts_[i].position > round.passes) continue;
    ++candidates[static_cast<size_t>(drafts_[i].candidate)].num_drafts;
    --left;
  }
}

}  // namespace tandem
