#include "runtime/speculation/draft_length.h"

#include <algorithm>

#include "ops/round_rules.h"

namespace tandem {
namespace {

using ops::rules::kRoundLag;  // the first draft step of a round carries these tokens

// The upper limit of hope; the share of it that a step with drafts removes, and that a step without
// them restores. A failed try costs a dozen steps in thousands.
constexpr double kMostHope = 0.5;
constexpr double kHopeLost = 1.0 / 8;
constexpr double kHopeRegained = 1.0 / 16384;
// The share of a surcharge that a step without drafts removes.
constexpr double kDoubtForgotten = 1.0 / 2048;
// While steps draft, one in this many decodes plainly: nothing else tells the cost of a plain pass.
constexpr int32_t kPlainEvery = 128;
// Losing rounds raise the price of drafting by this share each, up to the limit.
constexpr double kDoubt = 1.0 / 32;
constexpr double kMostDoubt = 1.5;
// Drafting must promise this much over plain decoding: estimates err, and a tie should not draft.
constexpr double kMargin = 1.04;
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

}  // namespace

DraftLengthChooser::DraftLengthChooser(int32_t max_candidates, int32_t max_draft_len, double hope)
    : rows_at_(static_cast<size_t>(max_draft_len) + 1) {
  drafts_.reserve(static_cast<size_t>(max_candidates) * static_cast<size_t>(max_draft_len));
  hope_.fill(hope);
}

void DraftLengthChooser::ListDrafts(std::span<const DraftCandidate> candidates) {
  drafts_.clear();
  const auto longest = static_cast<int32_t>(rows_at_.size()) - 1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    double worth = MustCatchUp(candidates[i]) ? kEntryShare : 1.0;
    for (int32_t j = 1; j <= std::min(candidates[i].max_drafts, longest); ++j) {
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

void DraftLengthChooser::Choose(std::span<DraftCandidate> candidates, const DraftContext& context,
                                const CostTable& costs) {
  for (DraftCandidate& candidate : candidates) candidate.num_drafts = 0;
  ListDrafts(candidates);
  const auto plain_rows = static_cast<int32_t>(candidates.size());
  const double plain_tokens = plain_rows;
  const double plain_seconds = costs.Seconds(ModelIndex::kTarget, plain_rows);
  const size_t bucket = RowBucket(plain_rows);
  const double hope = hope_[bucket];
  const auto affordable =
      std::min(drafts_.size(), static_cast<size_t>(std::max(context.max_drafts, 0)));

  std::fill(rows_at_.begin(), rows_at_.end(), 0);
  double tokens = plain_tokens;
  double draft_seconds = 0.0;
  // Compared as tokens per second; without a measured target every draft looks free, so none is
  // used.
  double best_goodput =
      plain_seconds > 0.0 ? plain_tokens / (plain_seconds + context.overhead) * kMargin : 0.0;
  size_t best_count = 0;
  for (size_t count = 1; count <= affordable && plain_seconds > 0.0; ++count) {
    const Draft& draft = drafts_[count - 1];
    DraftCandidate& candidate = candidates[static_cast<size_t>(draft.candidate)];
    int32_t& rows = rows_at_[static_cast<size_t>(draft.position)];
    const bool first = draft.position == 1;
    draft_seconds +=
        costs.Seconds(ModelIndex::kDraft, rows + 1) - costs.Seconds(ModelIndex::kDraft, rows);
    if (first) {
      candidate.catch_up_per_token = CatchUpPerToken(candidate, costs);
      draft_seconds += costs.CatchUpSeconds(std::min(candidate.draft_lag, kRoundLag) - 1);
    }
    // The first draft also carries the round's own token.
    draft_seconds += candidate.catch_up_per_token * (draft.worth + (first ? 1.0 : 0.0));
    ++rows;
    tokens += draft.worth;
    const auto drafts = static_cast<int32_t>(count);
    // Passes of other numbers of rows share a factor: never less than without drafts.
    const double verify_seconds =
        std::max(plain_seconds, costs.VerifyFactor(plain_rows + drafts) *
                                    StepSeconds(plain_rows, context.base_rows, drafts, costs));
    const double seconds = (verify_seconds + draft_seconds + context.overhead) * hope;
    if (tokens / seconds > best_goodput) {
      best_goodput = tokens / seconds;
      best_count = count;
    }
  }
  int32_t& steps_drafting = steps_drafting_[bucket];
  steps_drafting = best_count > 0 ? steps_drafting + 1 : 0;
  if (steps_drafting >= kPlainEvery && context.base_rows == plain_rows) {
    steps_drafting = 0;
    return;
  }
  for (size_t i = 0; i < best_count; ++i) {
    ++candidates[static_cast<size_t>(drafts_[i].candidate)].num_drafts;
  }
  if (affordable == 0) return;
  LearnHope(bucket, best_count > 0, context.round_gain);
  if (best_count == 0) ChooseProbe(candidates, context, costs);
}

void DraftLengthChooser::LearnHope(size_t bucket, bool drafts, double round_gain) {
  double& hope = hope_[bucket];
  if (!drafts && hope > 1.0) {
    hope += kDoubtForgotten * (1.0 - hope) + kHopeRegained * (kMostHope - 1.0);
  } else if (!drafts) {
    hope += kHopeRegained * (kMostHope - hope);
  } else if (round_gain < 1.0) {
    hope = std::min(std::max(hope, 1.0) * (1.0 + kDoubt), kMostDoubt);
  } else {
    hope += kHopeLost * (1.0 - hope);
  }
}

// One draft for the sequence that has waited longest, if good drafts of all sequences would pay,
// its own are not known to be good, and the try is cheap compared to the time since any sequence
// last drafted: all tries together take at most kProbeShare of the time.
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
