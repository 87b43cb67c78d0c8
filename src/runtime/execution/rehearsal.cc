#include "runtime/execution/rehearsal.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "ops/round_rules.h"
#include "runtime/execution/device_graphs.h"

namespace tandem {
namespace {

using ops::rules::kRoundLag;

// Tokens of every made-up sequence, where there is room.
constexpr int32_t kContext = 64;
// Steps that measure the price of the draft model's catch-ups: of one sequence, then of
// kCatchUpSequences if the limits and the time allow; each has missed kCatchUpTokens - 1 tokens.
// The larger step decides.
constexpr int32_t kCatchUpSequences = 16;
constexpr int32_t kCatchUpTokens = 32;
using Seconds = std::chrono::duration<double>;
constexpr Seconds kTimeForGraphs{4.0};
// First measurements of a step begin until the longest time has passed, repeats until the other.
constexpr Seconds kLongest{3.0};
constexpr Seconds kTimeForPrices{0.75};
constexpr int kRounds = 5;
constexpr int kRepeats = 3;

// A step of sequences that decode.
struct MadeUpStep {
  int32_t sequences = 0;
  int32_t drafts = 0;  // of a sequence, as long as there are rows left
  int32_t rows = 0;    // of the target, those that verify drafts included
  int32_t draft_lag = 1;

  // Of the draft model's first pass, besides those that drafts are drawn after.
  int32_t catch_up() const { return sequences * (draft_lag - 1); }
  bool verifies() const { return rows > sequences; }
};

MadeUpStep EachDrafts(int32_t sequences, int32_t drafts) {
  return {.sequences = sequences, .drafts = drafts, .rows = sequences * (1 + drafts)};
}

// What passes of a step took at best; 0: not measured.
struct Taken {
  double target = 0.0;
  double draft = 0.0;  // a pass of one row per sequence, and of the catch-up
};

void Keep(double seconds, double& best) {
  if (seconds > 0.0) best = best > 0.0 ? std::min(best, seconds) : seconds;
}

bool IsPowerOfTwo(int32_t rows) { return std::has_single_bit(static_cast<uint32_t>(rows)); }

class Rehearsal {
 public:
  Rehearsal(Executor& executor, const ExecutorConfig& config, const RehearsalScope& scope,
            const Clock& clock, const Turn& turn)
      : executor_(executor), config_(config), scope_(scope), clock_(clock), turn_(turn) {
    AddPricedSteps();
    if (!config.on_host) AddGraphs();
    taken_.resize(priced_.size());
  }

  // Each step twice: parts of a step are recorded when they are used again.
  Status RecordGraphs() {
    Status status;
    const auto run_steps = [&](bool yields) {
      const Nanos start = OwnTime();
      for (const std::vector<MadeUpStep>* steps : {&priced_, &graphs_}) {
        for (const MadeUpStep& step : *steps) {
          if (!status.ok() || OwnTime() - start >= kTimeForGraphs) continue;
          if (yields) LetOthersGo();
          status = Run(step);
        }
      }
    };
    // A warm-up compares kernels by their times.
    executor_.WarmUp([&] { run_steps(/*yields=*/false); });
    run_steps(/*yields=*/true);
    return status;
  }

  // Rounds rather than repeats: a neighbour on the machine that is busy for a while disturbs every
  // step a little, instead of one step entirely, and the choice of drafts depends on differences.
  Status MeasurePrices() {
    const Nanos start = OwnTime();
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < priced_.size(); ++i) {
        const Nanos taken = OwnTime() - start;
        if (taken > (round == 0 ? kLongest : kTimeForPrices)) continue;
        if (round > 0 && taken_[i].target <= 0.0) continue;
        if (config_.on_host) LetOthersGo();
        if (round == 0) TANDEM_RETURN_IF_ERROR(Run(priced_[i]));
        TANDEM_RETURN_IF_ERROR(Measure(priced_[i], taken_[i]));
      }
    }
    return {};
  }

  void SetPrices(CostTable& costs) const {
    // A device's passes have the rows of the next bucket.
    const auto between = config_.on_host ? CostTable::Between::kLinear : CostTable::Between::kNext;
    const std::vector<CostTable::Point> draft = DraftPoints();
    // A draft model without a price would look free: then nothing has one, and nothing is drafted.
    if (scope_.draft_model && draft.empty()) return;
    costs.Set(ModelIndex::kTarget, TargetPoints(), between);
    costs.Set(ModelIndex::kDraft, draft, between);
    for (size_t i = 0; i < priced_.size(); ++i) {
      if (priced_[i].verifies()) costs.SetVerify(priced_[i].rows, taken_[i].target);
      if (priced_[i].catch_up() == 0 || taken_[i].draft <= 0.0) continue;
      const double drafts = costs.Seconds(ModelIndex::kDraft, priced_[i].sequences);
      costs.SetCatchUp(std::max(taken_[i].draft - drafts, 0.0) / priced_[i].catch_up());
    }
  }

 private:
  // In the order in which they are measured as long as there is time: powers of two give the curve
  // its range, the numbers between them show the steps that the kernels' row tiles make.
  void AddPricedSteps() {
    const int32_t most = config_.max_batch_size;
    const auto add = [this](const MadeUpStep& step) {
      if (Fits(step)) priced_.push_back(step);
    };
    for (int32_t sequences = 1; sequences <= most; sequences *= 2) {
      add(EachDrafts(sequences, 0));
      for (int32_t drafts = 1; drafts <= config_.max_draft_len; drafts = 2 * drafts + 1) {
        add(EachDrafts(sequences, drafts));
        if (drafts > 1 || !scope_.draft_model) continue;
        if (sequences != 1 && sequences != kCatchUpSequences) continue;
        MadeUpStep catch_up = EachDrafts(sequences, drafts);
        catch_up.draft_lag = kCatchUpTokens;
        add(catch_up);
      }
    }
    std::vector<int32_t> others = {3, 5, 6, 7, 10, 12, 14, 20, 24, 28, 48, most};
    if (!config_.on_host) others = GraphSizes(most);
    for (const int32_t sequences : others) {
      if (sequences <= most && !IsPowerOfTwo(sequences)) add(EachDrafts(sequences, 0));
    }
  }

  // A step for every bucket of rows and every length of drafts that graphs are made for.
  void AddGraphs() {
    const int32_t most = std::min(config_.max_num_tokens, config_.max_logits_rows);
    for (const int32_t rows : GraphSizes(most)) {
      for (int32_t length = 1;; length = std::min(2 * length, 1 + config_.max_draft_len)) {
        const int32_t sequences = (rows + length - 1) / length;
        const MadeUpStep step = {
            .sequences = sequences, .drafts = length - 1, .rows = rows, .draft_lag = kRoundLag};
        if (Fits(step)) graphs_.push_back(step);
        if (length > config_.max_draft_len) break;
      }
    }
  }

  bool Fits(const MadeUpStep& step) const {
    return step.sequences <= config_.max_batch_size &&
           step.rows <= std::min(config_.max_num_tokens, config_.max_logits_rows) &&
           step.sequences * step.draft_lag <= config_.max_num_tokens && step.rows > step.drafts &&
           ContextOf(step) >= step.draft_lag;
  }

  int32_t BlocksOf(const MadeUpStep& step) const { return scope_.num_blocks / step.sequences; }

  // Known tokens of each sequence; no room for the step if there are none.
  int32_t ContextOf(const MadeUpStep& step) const {
    const int64_t room =
        std::min<int64_t>(config_.max_seq_len, int64_t{BlocksOf(step)} * config_.block_tokens);
    int64_t context = std::min<int64_t>(kContext, room - step.drafts - 1);
    if (scope_.draft_model) {
      context = std::min<int64_t>(context, scope_.draft_max_positions - step.drafts);
    }
    return static_cast<int32_t>(context);
  }

  // Look-ups draft what followed an earlier occurrence of the last tokens: they find as many drafts
  // as the text's period has tokens, and leave different tokens to the draft model.
  int32_t TokenAt(int32_t position, const MadeUpStep& step) const {
    const int64_t period = scope_.draft_model ? scope_.vocab : std::max(step.drafts, 1);
    return static_cast<int32_t>(position % period);
  }

  // The rehearsal's time is its own: what others take of it would leave steps without a price.
  Nanos OwnTime() const { return clock_.Now() - others_; }
  void LetOthersGo() {
    const Nanos start = clock_.Now();
    turn_.Yield();
    others_ += clock_.Now() - start;
  }

  // Sequences share window blocks where there are too few: nobody reads what they hold.
  void AddBlock(BlockId block) {
    plan_.blocks.push_back(block);
    if (scope_.num_window_blocks == 0) return;
    const auto mapped = static_cast<int32_t>(plan_.mappings.size());
    if (mapped == config_.MaxMappings(config_.block_tokens)) return;
    plan_.mappings.push_back({block, block % scope_.num_window_blocks});
  }

  Status Run(const MadeUpStep& step) {
    const int32_t context = ContextOf(step);
    const int32_t length = context + step.drafts + 1;
    const int32_t blocks = (length + config_.block_tokens - 1) / config_.block_tokens;
    init_.prompt_tokens = context;
    init_.max_length = length;
    init_.computed = {context - 1, context - step.draft_lag};
    init_.sampling.temperature = 0.0f;
    init_.tokens.resize(static_cast<size_t>(context));
    for (int32_t i = 0; i < context; ++i) init_.tokens[static_cast<size_t>(i)] = TokenAt(i, step);
    plan_.Clear();
    int32_t drafts_left = step.rows - step.sequences;
    for (int32_t slot = 0; slot < step.sequences; ++slot) {
      executor_.AddSequence(slot, init_, nullptr);
      SequencePlan planned = {.slot = slot, .target_tokens = 1, .samples = true};
      planned.num_drafts = std::min(step.drafts, drafts_left);
      planned.draft_tokens = scope_.draft_model && planned.num_drafts > 0 ? step.draft_lag : 0;
      planned.first_new_block = slot * blocks;
      planned.num_new_blocks = blocks;
      plan_.sequences.push_back(planned);
      for (int32_t i = 0; i < blocks; ++i) AddBlock(planned.first_new_block + i);
      drafts_left -= planned.num_drafts;
    }
    executor_.Propose(plan_);
    executor_.Run(plan_);
    executor_.Sample(plan_);
    TANDEM_RETURN_IF_ERROR(executor_.Land(result_));
    for (int32_t slot = 0; slot < step.sequences; ++slot) executor_.RemoveSequence(slot);
    return {};
  }

  // The best of a few runs: a disturbance can only add time.
  Status Measure(const MadeUpStep& step, Taken& taken) {
    for (int i = 0; i < kRepeats; ++i) {
      const Nanos start = clock_.Now();
      TANDEM_RETURN_IF_ERROR(Run(step));
      KeepTimes(step, taken);
      if (clock_.Now() - start > kTimeForPrices / (kRounds * kRepeats)) break;
    }
    return {};
  }

  void KeepTimes(const MadeUpStep& step, Taken& taken) const {
    const StepTimes& times = result_.times;
    bool timed_drafts = false;
    double target = 0.0;
    for (const PassTime& passes : times.passes) {
      if (passes.model == ModelIndex::kTarget) {
        target = passes.seconds;
      } else if (passes.rows == step.sequences && passes.catch_up == step.catch_up()) {
        timed_drafts = true;
        Keep(passes.seconds / (1 + passes.more), taken.draft);
      }
    }
    Keep(target, taken.target);
    // Where drafts may be looked up a device does not time the passes of the draft model.
    if (!timed_drafts && scope_.draft_model && step.drafts > 0 && target > 0.0) {
      Keep((times.round_seconds - target) / step.drafts, taken.draft);
    }
  }

  // Plain passes, and after the largest of them those that verify.
  std::vector<CostTable::Point> TargetPoints() const {
    std::vector<CostTable::Point> points;
    for (const bool verifies : {false, true}) {
      const int32_t known = verifies && !points.empty() ? points.back().rows : 0;
      std::vector<CostTable::Point> more;
      for (size_t i = 0; i < priced_.size(); ++i) {
        if (priced_[i].verifies() != verifies || priced_[i].rows <= known) continue;
        AddPoint(priced_[i].rows, taken_[i].target, more);
      }
      std::ranges::sort(more, {}, &CostTable::Point::rows);
      points.insert(points.end(), more.begin(), more.end());
    }
    return points;
  }

  std::vector<CostTable::Point> DraftPoints() const {
    std::vector<CostTable::Point> points;
    for (size_t i = 0; i < priced_.size(); ++i) {
      if (priced_[i].catch_up() == 0) AddPoint(priced_[i].sequences, taken_[i].draft, points);
    }
    std::ranges::sort(points, {}, &CostTable::Point::rows);
    return points;
  }

  // Of several steps with as many rows the fastest counts.
  static void AddPoint(int32_t rows, double seconds, std::vector<CostTable::Point>& points) {
    if (seconds <= 0.0) return;
    const auto found = std::ranges::find(points, rows, &CostTable::Point::rows);
    if (found == points.end()) {
      points.push_back({rows, seconds});
    } else {
      Keep(seconds, found->seconds);
    }
  }

  Executor& executor_;
  const ExecutorConfig& config_;
  const RehearsalScope& scope_;
  const Clock& clock_;
  const Turn& turn_;
  Nanos others_{0};  // the time that others had the turn
  std::vector<MadeUpStep> priced_;
  std::vector<Taken> taken_;        // of each priced step
  std::vector<MadeUpStep> graphs_;  // run to be recorded only
  SlotInit init_;
  BatchPlan plan_;
  StepResult result_;
};

}  // namespace

Status Rehearse(Executor& executor, const ExecutorConfig& config, const RehearsalScope& scope,
                const Clock& clock, const Turn& turn, CostTable* costs) {
  Rehearsal rehearsal(executor, config, scope, clock, turn);
  if (!config.on_host) TANDEM_RETURN_IF_ERROR(rehearsal.RecordGraphs());
  if (costs == nullptr) return {};
  TANDEM_RETURN_IF_ERROR(rehearsal.MeasurePrices());
  rehearsal.SetPrices(*costs);
  return {};
}

}  // namespace tandem
