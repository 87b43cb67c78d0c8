// Something always moves: random schedules over pools without a spare block, requests sent twice,
// cancellations, every policy, with zero to three steps in flight. Within three turns of the loop
// something is planned, started, paused, committed or ended; everything ends, and then no block is
// referenced. Window blocks are as many as the limits say; others may be offloaded. And slots are
// shared fairly: one request with many choices among a steady stream of requests with one. The
// device is simulated: it computes the plan, and its draws follow from the prompt, the seed and the
// position, so that a request sent twice repeats its text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/request/validate_request.h"
#include "runtime/scheduling/commit.h"
#include "runtime/scheduling/scheduler.h"

namespace tandem {
namespace {

constexpr int kTurnsWithoutMove = 3;

// The engine's loop, with a device that computes the plan.
class Loop {
 public:
  virtual ~Loop() = default;

 protected:
  explicit Loop(uint64_t seed) : random_(seed) {}

  void Make(const SchedulerLimits& limits, const KvCacheOptions& kv) {
    kv_ = std::make_unique<KvCache>(kv);
    speculation_ =
        std::make_unique<Speculation>(limits.max_batch_size, limits.max_draft_len, CostTable());
    scheduler_ = std::make_unique<Scheduler>(limits, *kv_, *speculation_);
    plans_.resize(static_cast<size_t>(limits.max_launched));
  }

  int32_t Below(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  void Send(const std::shared_ptr<OpenRequest>& open) {
    open->id = ++last_id_;
    const auto prompt = static_cast<int32_t>(open->request.prompt.size());
    for (int32_t choice = 0; choice < open->request.num_choices; ++choice) {
      auto sequence = std::make_unique<Sequence>();
      sequence->open = open;
      sequence->choice = choice;
      sequence->tokens = open->request.prompt;
      sequence->max_length = prompt + open->request.max_tokens;
      sequence->sent_drafts = NumSentDrafts(open->request);
      scheduler_->Enqueue(*sequence);
      sequences_.push_back(std::move(sequence));
    }
    moved_ = true;
  }

  // The target's draw after `position` tokens: few different tokens, so that texts diverge late.
  static int32_t Draw(const Sequence& sequence) {
    const auto seed = static_cast<int32_t>(sequence.open->seed) + sequence.choice;
    const auto position = static_cast<int32_t>(sequence.tokens.size());
    return seed > 0 && position % 7 == seed ? 2 : 3 + position % 5;
  }

  void End(Sequence& sequence) {
    if (sequence.phase == Phase::kWaiting) scheduler_->Dequeue(sequence);
    sequence.phase = Phase::kFinished;
    Ended(sequence);
    moved_ = true;
  }

  void Turn() {
    StepPlan& plan = plans_[launched_ % plans_.size()];
    scheduler_->Plan(launched_, plan);
    for (Sequence* sequence : plan.started) sequence->ever_started = true;
    Planned(plan);
    const bool launched = !plan.batch.empty();
    moved_ = moved_ || launched || !plan.started.empty() || !plan.vacated_slots.empty();
    if (launched) ++launched_;
    if (launched_ - landed_ > (launched ? plans_.size() - 1 : 0)) Land();
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
      ReleaseCopySource(sequence, *kv_);
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
      if (item.num_drafts > 0 && !item.sent) sequence.computed[1] = length() - 1 - Below(0, 1);
    }
    PublishBlocks(sequence, *kv_);
    TrimWindows(sequence, *kv_);
    if (length() >= sequence.max_length || (item.samples && EndsEarly())) End(sequence);
  }

  // What a test looks at after a plan.
  virtual void Planned(const StepPlan& /*plan*/) {}
  virtual void Ended(const Sequence& /*sequence*/) {}
  // Whether an answer ends before its longest length.
  virtual bool EndsEarly() { return false; }

  std::mt19937_64 random_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Speculation> speculation_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<StepPlan> plans_;  // a ring
  uint64_t last_id_ = 0;
  uint64_t launched_ = 0;
  uint64_t landed_ = 0;
  bool moved_ = false;  // in this turn
};

class Simulation : public Loop {
 public:
  explicit Simulation(uint64_t seed) : Loop(seed) {
    SchedulerLimits limits;
    limits.max_batch_size = Below(1, 4);
    limits.max_num_tokens = limits.max_batch_size + Below(0, 40);
    limits.max_logits_rows = limits.max_batch_size + Below(0, 12);
    limits.chunked_prefill = Below(0, 3) != 0;
    limits.prefix_reuse = Below(0, 7) != 0;
    limits.policy = static_cast<SchedulerPolicy>(Below(0, 2));
    limits.draft_mode = Below(0, 1) == 0 ? DraftMode::kFixed : DraftMode::kOff;
    limits.fixed_draft_len = limits.max_draft_len = Below(0, 3) == 0 ? Below(5, 15) : Below(1, 4);
    limits.draft_model = Below(0, 2) != 0;
    limits.draft_max_positions = 1 << 20;
    limits.max_launched = Below(0, 3) + 1;
    limits.max_sent_drafts = std::min({Below(0, 6), limits.max_num_tokens - limits.max_batch_size,
                                       limits.max_logits_rows - limits.max_batch_size});
    limits_ = limits;
    const int32_t block_tokens = Below(2, 6);
    longest_ = Below(2, 12) * block_tokens - Below(0, block_tokens - 1);
    longest_ = std::max(longest_, 2);
    longest_prompt_ =
        limits.chunked_prefill ? longest_ - 1 : std::min(longest_ - 1, limits.max_num_tokens);
    // Exactly one longest sequence, or one or two blocks more.
    const int32_t spare = std::max(Below(-3, 2), 0);
    KvCacheOptions kv{(longest_ + block_tokens - 1) / block_tokens + spare, block_tokens,
                      limits.prefix_reuse};
    // In half of the schedules; of those half have room for all slots.
    kv.window_tokens = Below(0, 1) * Below(1, longest_);
    if (kv.window_tokens > 0 && Below(0, 1) == 0) kv.num_blocks *= limits.max_batch_size;
    kv.num_window_blocks =
        static_cast<int32_t>(limits.MaxWindowBlocks(kv.window_tokens, block_tokens));
    max_mappings_ = static_cast<size_t>(limits.MaxMappings(block_tokens));
    if (kv.window_tokens == 0) kv.num_host_blocks = Below(0, 2) * Below(1, kv.num_blocks);
    Make(limits, kv);
    callers_ = Below(1, 3);
    // Every request is sent twice, sometimes with another length or seed.
    for (int32_t i = Below(1, 5); i > 0; --i) {
      Ask ask{Below(0, 1),        Below(1, longest_prompt_),          Below(0, 2),
              Below(1, longest_), Below(0, 5) == 0 ? Below(2, 4) : 1, Below(1, callers_)};
      asks_.push_back(ask);
      if (Below(0, 3) == 0) ask.max_tokens = Below(1, longest_);
      if (Below(0, 3) == 0) ask.seed = Below(0, 2);
      if (Below(0, 3) == 0) ask.caller = Below(1, callers_);
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
      MoveBounds();
      Turn();
      kv_->CheckIntegrity();
      const auto paused = std::ranges::count_if(
          scheduler_->waiting(), [](const Sequence* sequence) { return sequence->started > 0; });
      if (paused != scheduler_->paused()) return "the paused sequences are miscounted";
      still = moved_ ? 0 : still + 1;
      if (still > kTurnsWithoutMove) {
        return std::to_string(scheduler_->waiting().size()) + " wait and " +
               std::to_string(scheduler_->active().size()) + " hold a slot, nothing moves";
      }
    }
    const KvCacheStats stats = kv_->Stats();
    if (stats.referenced_blocks != 0) return "blocks are referenced at the end";
    if (stats.referenced_window_blocks != 0) return "window blocks are referenced at the end";
    return "";
  }

 private:
  struct Ask {
    int32_t text = 0;  // which of two texts the prompt begins
    int32_t prompt = 1;
    int32_t seed = 0;
    int32_t max_tokens = 1;
    int32_t choices = 1;
    int32_t caller = 1;
  };

  void Submit() {
    // A single client sends its next request after its answer; several clients do not wait.
    const bool sends = sequences_.empty() || (!one_client_ && Below(0, 3) == 0);
    if (asks_.empty() || !sends) return;
    const Ask ask = asks_.back();
    asks_.pop_back();
    auto open = std::make_shared<OpenRequest>();
    open->seed = static_cast<uint64_t>(ask.seed);
    open->request.num_choices = ask.choices;
    open->request.priority = Below(0, 9) == 0 ? 0.9 : 0.5;
    for (int32_t i = 0; i < ask.prompt; ++i) {
      open->request.prompt.push_back(i % 9 == 5 ? ask.text : 3 + i % 5);
    }
    open->request.max_tokens = std::min(ask.max_tokens, longest_ - ask.prompt);
    if (Below(0, 2) == 0) {
      open->request.draft.tokens.resize(static_cast<size_t>(Below(0, limits_.max_sent_drafts)));
    }
    open->request.return_context_logits = Below(0, 3) == 0;
    if (callers_ > 1) open->request.cache_key = std::to_string(ask.caller);
    Send(open);
  }

  bool EndsEarly() override { return Below(0, 80) == 0; }

  // A step keeps to the limits, and drafts that were sent are verified together.
  void Planned(const StepPlan& plan) override {
    int32_t logits = 0, sent_rows = 0;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const SequencePlan& item = plan.batch.sequences[i];
      logits += 1 + item.SpareLogits();
      if (!item.sent) continue;
      sent_rows += item.num_drafts + 1;
      EXPECT_EQ(item.num_drafts, plan.sequences[i]->sent_drafts);
      EXPECT_EQ(item.draft_tokens, 0);
    }
    EXPECT_LE(logits, limits_.max_logits_rows);
    const StepBounds& bounds = scheduler_->bounds();
    EXPECT_LE(plan.batch.TargetRows(), bounds.tokens);
    if (!plan.started.empty()) {
      EXPECT_LE(scheduler_->active().size(), static_cast<size_t>(bounds.sequences));
    }
    EXPECT_LE(sent_rows, limits_.MaxSentRows());
    EXPECT_LE(plan.batch.mappings.size(), max_mappings_);
    // Copies to the host wait for no others of the same plan.
    std::vector<HostCopy> to_device;
    for (const HostCopy& copy : plan.batch.host_copies) {
      if (!copy.to_host) to_device.push_back(copy);
      for (const HostCopy& before : to_device) {
        EXPECT_FALSE(copy.to_host && (copy.host == before.host || copy.block == before.block));
      }
    }
  }

  // As a tuner does, but to any value.
  void MoveBounds() {
    if (Below(0, 9) != 0) return;
    const int32_t most = limits_.max_num_tokens;
    scheduler_->SetBounds({.sequences = Below(1, limits_.max_batch_size),
                           .tokens = limits_.chunked_prefill ? Below(1, most) : most});
  }

  void CancelSome() {
    if (sequences_.empty() || Below(0, 60) != 0) return;
    Sequence& victim =
        *sequences_[static_cast<size_t>(Below(0, static_cast<int32_t>(sequences_.size()) - 1))];
    if (victim.phase != Phase::kFinished) End(victim);
  }

  SchedulerLimits limits_;
  size_t max_mappings_ = 0;
  int32_t longest_ = 0;
  int32_t longest_prompt_ = 0;
  bool one_client_ = false;
  int32_t callers_ = 1;    // whose prompts are kept apart
  std::vector<Ask> asks_;  // still to be sent, last first
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

// One client asks for many choices and gets every slot that it can use; then others come that ask
// for one, each again some turns after its answer.
struct StreamCase {
  SchedulerPolicy policy = SchedulerPolicy::kMaxUtilization;
  bool prefix_reuse = true;
  int32_t choices = 1;
  int32_t clients = 1;
  int32_t max_launched = 1;
  int32_t longest_gap = 3;
};

class Stream : public Loop {
 public:
  static constexpr int32_t kSlots = 32;
  static constexpr int kTurns = 2'000;
  static constexpr int32_t kLongAnswer = 200;
  static constexpr int32_t kShortAnswer = 32;

  explicit Stream(const StreamCase& test)
      : Loop(1), test_(test), next_(static_cast<size_t>(test.clients), kFirstTurn) {
    SchedulerLimits limits;
    limits.max_batch_size = limits.max_logits_rows = kSlots;
    limits.max_num_tokens = 256;
    limits.policy = test.policy;
    limits.prefix_reuse = test.prefix_reuse;
    limits.max_launched = test.max_launched;
    Make(limits, {2'000, 16, test.prefix_reuse});
  }

  void Run() {
    for (turn_ = 0; turn_ < kTurns; ++turn_) {
      if (big_.expired()) big_ = Ask(test_.choices, 100, kLongAnswer, 0);
      for (size_t client = 0; client < next_.size(); ++client) {
        if (next_[client] == turn_) Ask(1, 20, Below(kShortAnswer / 2, kShortAnswer), client);
      }
      Turn();
    }
    for (const auto& sequence : sequences_) {
      if (sequence->request().num_choices > 1) big_tokens += sequence->output_tokens();
    }
  }

  int longest_wait = 0;        // turns that a request with one choice waited for its slot
  int longest_wait_later = 0;  // of those sent after the first long answers
  int64_t pauses = 0;
  int64_t undone = 0;      // of those, at most two plans after the start
  int64_t fruitless = 0;   // of those, before a token was drawn
  int64_t rows_again = 0;  // computed again after a pause
  int64_t big_tokens = 0;

 private:
  static constexpr int kFirstTurn = 20;

  struct Record {
    size_t client = 0;
    int sent = 0;
    int started = -1;
    size_t known = 0;  // tokens, when it started
  };

  std::shared_ptr<OpenRequest> Ask(int32_t choices, int32_t prompt, int32_t answer, size_t client) {
    auto open = std::make_shared<OpenRequest>();
    open->request.num_choices = choices;
    open->request.max_tokens = answer;
    open->request.prompt.resize(static_cast<size_t>(prompt), static_cast<int32_t>(last_id_) + 10);
    Send(open);
    for (const auto& sequence : sequences_) {
      if (sequence->open == open) records_[sequence.get()] = {client, turn_};
    }
    return open;
  }

  void Planned(const StepPlan& plan) override {
    for (const Sequence* sequence : plan.started) Started(*sequence, records_[sequence]);
    for (const auto& sequence : sequences_) {
      Record& record = records_[sequence.get()];
      const bool waits = sequence->phase == Phase::kWaiting || sequence->phase == Phase::kPausing;
      if (record.started >= 0 && waits) Paused(*sequence, record);
    }
  }

  void Started(const Sequence& sequence, Record& record) {
    const bool again = record.known > 0;
    record.started = turn_;
    record.known = sequence.tokens.size();
    if (again) rows_again += static_cast<int32_t>(record.known) - sequence.computed[0];
    if (again || sequence.request().num_choices > 1) return;
    const int wait = turn_ - record.sent;
    longest_wait = std::max(longest_wait, wait);
    if (record.sent > 2 * kLongAnswer) longest_wait_later = std::max(longest_wait_later, wait);
  }

  void Paused(const Sequence& sequence, Record& record) {
    ++pauses;
    if (turn_ - record.started <= 2) ++undone;
    if (sequence.tokens.size() == record.known) ++fruitless;
    record.started = -1;
  }

  void Ended(const Sequence& sequence) override {
    const bool big = sequence.request().num_choices > 1;
    if (big) big_tokens += sequence.output_tokens();
    if (!big) next_[records_[&sequence].client] = turn_ + Below(1, test_.longest_gap);
  }

  const StreamCase test_;
  int turn_ = 0;
  std::weak_ptr<OpenRequest> big_;
  std::vector<int> next_;                                // the turn in which each client asks again
  std::unordered_map<const Sequence*, Record> records_;  // Ask replaces those of ended ones
};

void ExpectFairness(const StreamCase& test) {
  Stream stream(test);
  stream.Run();
  EXPECT_EQ(stream.undone, 0);
  EXPECT_EQ(stream.fruitless, 0);
  const double share = std::min<double>(
      test.choices, static_cast<double>(Stream::kSlots) / static_cast<double>(test.clients + 1));
  EXPECT_GE(static_cast<double>(stream.big_tokens), 0.9 * share * Stream::kTurns);
  if (test.policy == SchedulerPolicy::kStaticBatch) {
    EXPECT_LE(stream.longest_wait, 2 * Stream::kLongAnswer) << "a batch, and the one before it";
    return;
  }
  EXPECT_LE(stream.longest_wait_later, 10);
  if (test.policy == SchedulerPolicy::kGuaranteedNoEvict) {
    EXPECT_LE(stream.longest_wait, Stream::kLongAnswer) << "no slot is taken back";
    return;
  }
  EXPECT_LE(stream.longest_wait, test.clients < Stream::kSlots ? 4 : Stream::kShortAnswer);
  if (test.longest_gap <= 3) {
    EXPECT_LE(stream.pauses, 2 * test.choices) << "down to its share, once";
    EXPECT_LE(stream.rows_again, stream.big_tokens);
  }
}

TEST(SchedulerPropertyTest, ManyChoicesAmongSingles) {
  for (const bool prefix_reuse : {true, false}) {
    for (const int32_t choices : {2, 8, 32}) {
      for (const int32_t clients : {8, 32}) {
        for (const int32_t max_launched : {1, 3}) {
          SCOPED_TRACE(testing::Message()
                       << choices << " choices, " << clients << " clients, "
                       << (prefix_reuse ? "" : "no ") << "reuse, " << max_launched << " launched");
          StreamCase test{.prefix_reuse = prefix_reuse,
                          .choices = choices,
                          .clients = clients,
                          .max_launched = max_launched};
          ExpectFairness(test);
          test.policy = SchedulerPolicy::kGuaranteedNoEvict;
          ExpectFairness(test);
          test.policy = SchedulerPolicy::kStaticBatch;
          ExpectFairness(test);
          // Clients that take their time: the slots between two requests are put to use.
          test.policy = SchedulerPolicy::kMaxUtilization;
          test.longest_gap = 30;
          ExpectFairness(test);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
