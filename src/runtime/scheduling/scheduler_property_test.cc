// Something always moves: random schedules over pools without a spare block, requests sent twice,
// cancellations, every policy, with zero to three steps in flight. Within three turns of the loop
// something is planned, started, paused, committed or ended; everything ends, and then no block is
// referenced. The device is simulated: it computes the plan, and its draws follow from the prompt,
// the seed and the position, so that a request sent twice repeats its text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/scheduling/commit.h"
#include "runtime/scheduling/scheduler.h"

namespace tandem {
namespace {

constexpr int kTurnsWithoutMove = 3;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    SchedulerLimits limits;
    limits.max_batch_size = Below(1, 4);
    limits.max_num_tokens = limits.max_batch_size + Below(0, 40);
    limits.max_logits_rows = limits.max_batch_size + Below(0, 12);
    limits.chunked_prefill = Below(0, 3) != 0;
    limits.prefix_reuse = Below(0, 7) != 0;
    limits.policy = static_cast<SchedulerPolicy>(Below(0, 2));
    limits.draft_mode = Below(0, 1) == 0 ? DraftMode::kFixed : DraftMode::kOff;
    limits.fixed_draft_len = limits.max_draft_len = Below(1, 4);
    limits.draft_model = Below(0, 2) != 0;
    limits.draft_max_positions = 1 << 20;
    steps_in_flight_ = static_cast<uint64_t>(Below(0, 3));
    limits.max_launched = static_cast<int32_t>(steps_in_flight_) + 1;
    plans_.resize(steps_in_flight_ + 1);
    const int32_t block_tokens = Below(2, 6);
    longest_ = Below(2, 12) * block_tokens - Below(0, block_tokens - 1);
    longest_ = std::max(longest_, 2);
    longest_prompt_ =
        limits.chunked_prefill ? longest_ - 1 : std::min(longest_ - 1, limits.max_num_tokens);
    // Exactly one longest sequence, or one or two blocks more.
    const int32_t spare = std::max(Below(-3, 2), 0);
    const KvCacheOptions kv{(longest_ + block_tokens - 1) / block_tokens + spare, block_tokens,
                            limits.prefix_reuse};
    kv_ = std::make_unique<KvCache>(kv);
    speculation_ =
        std::make_unique<Speculation>(limits.max_batch_size, limits.max_draft_len, CostTable());
    scheduler_ = std::make_unique<Scheduler>(limits, *kv_, *speculation_);
    // Every request is sent twice, sometimes with another length or seed.
    for (int32_t i = Below(1, 5); i > 0; --i) {
      Ask ask{Below(0, 1), Below(1, longest_prompt_), Below(0, 2), Below(1, longest_),
              Below(0, 5) == 0 ? Below(2, 4) : 1};
      asks_.push_back(ask);
      if (Below(0, 3) == 0) ask.max_tokens = Below(1, longest_);
      if (Below(0, 3) == 0) ask.seed = Below(0, 2);
      asks_.push_back(ask);
    }
    if (Below(0, 1) == 0) std::shuffle(asks_.begin(), asks_.end(), random_);
    one_client_ = Below(0, 1) == 0;
  }

  // Empty, or a description of the failure.
  std::string Run() {
    int still = 0;
    for (int turn = 0; !asks_.empty() || !sequences_.empty(); ++turn) {
      if (turn > 20'000) return "the traffic never ends";
      moved_ = false;
      Submit();
      CancelSome();
      Turn();
      kv_->CheckIntegrity();
      still = moved_ ? 0 : still + 1;
      if (still > kTurnsWithoutMove) {
        return std::to_string(scheduler_->waiting().size()) + " wait and " +
               std::to_string(scheduler_->active().size()) + " hold a slot, nothing moves";
      }
    }
    const KvCacheStats stats = kv_->Stats();
    if (stats.referenced_blocks != 0) return "blocks are referenced at the end";
    return "";
  }

 private:
  struct Ask {
    int32_t text = 0;  // which of two texts the prompt begins
    int32_t prompt = 1;
    int32_t seed = 0;
    int32_t max_tokens = 1;
    int32_t choices = 1;
  };

  int32_t Below(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  // The target's draw after `position` tokens: few different tokens, so that texts diverge late.
  static int32_t Draw(const Sequence& sequence) {
    const auto seed = static_cast<int32_t>(sequence.open->seed) + sequence.choice;
    const auto position = static_cast<int32_t>(sequence.tokens.size());
    return seed > 0 && position % 7 == seed ? 2 : 3 + position % 5;
  }

  void Submit() {
    // A single client sends its next request after its answer; several clients do not wait.
    const bool sends = sequences_.empty() || (!one_client_ && Below(0, 3) == 0);
    if (asks_.empty() || !sends) return;
    const Ask ask = asks_.back();
    asks_.pop_back();
    auto open = std::make_shared<OpenRequest>();
    open->id = ++last_id_;
    open->seed = static_cast<uint64_t>(ask.seed);
    open->request.num_choices = ask.choices;
    open->request.priority = Below(0, 9) == 0 ? 0.9 : 0.5;
    for (int32_t i = 0; i < ask.prompt; ++i) {
      open->request.prompt.push_back(i % 9 == 5 ? ask.text : 3 + i % 5);
    }
    open->request.max_tokens = std::min(ask.max_tokens, longest_ - ask.prompt);
    for (int32_t choice = 0; choice < ask.choices; ++choice) {
      auto sequence = std::make_unique<Sequence>();
      sequence->open = open;
      sequence->choice = choice;
      sequence->tokens = open->request.prompt;
      sequence->max_length = ask.prompt + open->request.max_tokens;
      scheduler_->Enqueue(*sequence);
      sequences_.push_back(std::move(sequence));
    }
    moved_ = true;
  }

  void CancelSome() {
    if (sequences_.empty() || Below(0, 60) != 0) return;
    Sequence& victim =
        *sequences_[static_cast<size_t>(Below(0, static_cast<int32_t>(sequences_.size()) - 1))];
    if (victim.phase != Phase::kFinished) End(victim);
  }

  void End(Sequence& sequence) {
    if (sequence.phase == Phase::kWaiting) scheduler_->Dequeue(sequence);
    sequence.phase = Phase::kFinished;
    moved_ = true;
  }

  void Turn() {
    StepPlan& plan = plans_[launched_ % plans_.size()];
    scheduler_->Plan(launched_, plan);
    for (Sequence* sequence : plan.started) sequence->ever_started = true;
    const bool launched = !plan.batch.empty();
    moved_ = moved_ || launched || !plan.started.empty() || !plan.vacated_slots.empty();
    if (launched) ++launched_;
    if (launched_ - landed_ > (launched ? steps_in_flight_ : 0)) Land();
    std::erase_if(sequences_, [&](const std::unique_ptr<Sequence>& sequence) {
      if (sequence->phase != Phase::kFinished || sequence->InFlightAny()) return false;
      if (sequence->slot >= 0) scheduler_->Release(*sequence);
      moved_ = true;
      return true;
    });
  }

  void Land() {
    const StepPlan& plan = plans_[landed_ % plans_.size()];
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      Sequence& sequence = *plan.sequences[i];
      sequence.WorkOf(landed_) = {};
      if (sequence.copy_source >= 0) kv_->Release(std::span(&sequence.copy_source, 1));
      sequence.copy_source = -1;
      if (sequence.phase != Phase::kFinished) Commit(sequence, plan.batch.sequences[i]);
      if (sequence.phase == Phase::kPausing && !sequence.InFlightAny()) {
        scheduler_->FinishPause(sequence);
      }
    }
    ++landed_;
    moved_ = true;
  }

  void Commit(Sequence& sequence, const SequencePlan& item) {
    sequence.computed[0] += item.target_tokens;
    const auto length = [&] { return static_cast<int32_t>(sequence.tokens.size()); };
    sequence.computed[1] = std::min(sequence.computed[1] + item.draft_tokens, length());
    if (item.samples) {
      const int32_t held = Below(0, item.num_drafts);
      for (int32_t t = 0; t <= held && length() < sequence.max_length; ++t) {
        sequence.tokens.push_back(Draw(sequence));
      }
      sequence.computed[0] = length() - 1;
      if (item.num_drafts > 0) sequence.computed[1] = length() - 1 - Below(0, 1);
    }
    PublishBlocks(sequence, *kv_);
    if (length() >= sequence.max_length || (item.samples && Below(0, 80) == 0)) End(sequence);
  }

  std::mt19937_64 random_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Speculation> speculation_;
  std::unique_ptr<Scheduler> scheduler_;
  uint64_t steps_in_flight_ = 0;
  int32_t longest_ = 0;
  int32_t longest_prompt_ = 0;
  bool one_client_ = false;
  std::vector<Ask> asks_;  // still to be sent, last first
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<StepPlan> plans_;  // a ring
  uint64_t last_id_ = 0;
  uint64_t launched_ = 0;
  uint64_t landed_ = 0;
  bool moved_ = false;  // in this turn
};

// TANDEM_TEST_SCHEDULES sets how many: the slow test runs 200,000.
TEST(SchedulerPropertyTest, SomethingAlwaysMoves) {
  const char* const asked = std::getenv("TANDEM_TEST_SCHEDULES");
  const uint64_t schedules = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 50'000;
  for (uint64_t seed = 1; seed <= schedules; ++seed) {
    const std::string problem = Simulation(seed).Run();
    ASSERT_EQ(problem, "") << "schedule " << seed;
  }
}

}  // namespace
}  // namespace tandem
