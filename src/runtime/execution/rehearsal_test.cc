// Rehearsals of an executor on the host, with passes whose duration is set on a fake clock.
#include "runtime/execution/rehearsal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/execution/round_executor.h"
#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kVocab = 48;
constexpr int kSlowdown = 3;

// While the machine is busy with other work, everything takes three times as long.
struct Machine {
  FakeClock clock;
  Nanos busy_from{0};
  Nanos busy_until{0};
  int slowdown = 1;  // always
  Turns turns;       // at its use, of which the rehearsal holds one
  std::function<void()> during_pass;

  void Work(Nanos time) {
    const bool busy = clock.Now() >= busy_from && clock.Now() < busy_until;
    clock.Advance(time * (busy ? kSlowdown : slowdown));
  }
};

// The largest step and the longest context that passes saw.
struct Seen {
  int32_t rows = 0;
  int32_t context = 0;
  int32_t block = 0;
};

class PricedPass final : public ForwardPass {
 public:
  PricedPass(Machine& machine, Seen& seen, Nanos pass, Nanos row, Nanos draw, int32_t max_rows)
      : machine_(machine),
        seen_(seen),
        pass_(pass),
        row_(row),
        draw_(draw),
        logits_(static_cast<size_t>(max_rows * kVocab)) {}

  Tensor Forward(const ops::BatchView& batch, const ops::KvPool&) override {
    if (machine_.during_pass) machine_.during_pass();
    machine_.Work(pass_ + row_ * batch.num_rows + draw_ * batch.num_logits);
    seen_.rows = std::max(seen_.rows, batch.num_rows);
    for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
      seen_.context = std::max(seen_.context, batch.context_len[seq]);
      seen_.block = std::max(seen_.block, batch.block_table[seq * batch.max_blocks]);
    }
    return {logits_.data(), DType::kF32, {batch.num_logits, kVocab}, Device{}};
  }
  int64_t vocab_size() const override { return kVocab; }

 private:
  Machine& machine_;
  Seen& seen_;
  const Nanos pass_, row_, draw_;
  std::vector<float> logits_;
};

constexpr Nanos kTargetPass = milliseconds(1), kTargetRow{8'000}, kTargetDraw{2'000};
constexpr Nanos kDraftPass{50'000}, kDraftRow{200}, kDraftDraw{800};

double Price(ModelIndex model, int32_t rows) {
  return InSeconds(model == ModelIndex::kTarget ? kTargetPass + (kTargetRow + kTargetDraw) * rows
                                                : kDraftPass + (kDraftRow + kDraftDraw) * rows);
}

class RehearsalTest : public testing::Test {
 protected:
  RehearsalTest() {
    config_.max_batch_size = 16;
    config_.max_num_tokens = 512;
    config_.max_logits_rows = 128;
    config_.max_draft_len = 7;
    config_.max_seq_len = 512;
    config_.block_tokens = 8;
    config_.on_host = true;
    scope_ = {.num_blocks = 600, .vocab = kVocab, .draft_model = true, .draft_max_positions = 512};
  }

  CostTable Run(Machine& machine) {
    ExecutorModels models;
    models.target = std::make_unique<PricedPass>(machine, seen_, kTargetPass, kTargetRow,
                                                 kTargetDraw, config_.max_logits_rows);
    if (scope_.draft_model) {
      models.draft = std::make_unique<PricedPass>(machine, seen_, kDraftPass, kDraftRow, kDraftDraw,
                                                  config_.max_batch_size);
    }
    executor_ =
        RoundExecutor::Create(config_, TestBackend(), std::move(models), machine.clock).value();
    CostTable costs;
    const Turn turn(&machine.turns);
    EXPECT_TRUE(Rehearse(*executor_, config_, scope_, machine.clock, turn, &costs).ok());
    return costs;
  }

  // The largest relative error of a price.
  double WorstError(Machine& machine) {
    const CostTable costs = Run(machine);
    double worst = 0.0;
    for (const auto& [model, most] : {std::pair(ModelIndex::kTarget, config_.max_logits_rows),
                                      std::pair(ModelIndex::kDraft, config_.max_batch_size)}) {
      for (int32_t rows = 1; rows <= most; ++rows) {
        const double price = costs.Seconds(model, rows) / Price(model, rows);
        worst = std::max(worst, std::abs(price - 1.0));
        if (model != ModelIndex::kTarget || rows == 1) continue;
        worst = std::max(worst, std::abs(costs.VerifyFactor(rows) - 1.0));
      }
    }
    const double catch_up = costs.CatchUpSeconds(1000) / InSeconds(kDraftRow * 1000);
    return std::max(worst, std::abs(catch_up - 1.0));
  }

  ExecutorConfig config_;
  RehearsalScope scope_;
  Seen seen_;
  std::unique_ptr<RoundExecutor> executor_;
};

TEST_F(RehearsalTest, FindsThePriceOfEveryNumberOfRows) {
  Machine machine;
  EXPECT_LT(WorstError(machine), 1e-6);
  EXPECT_EQ(seen_.rows, 16 * 32) << "the catch-up";
  EXPECT_EQ(seen_.context, 64 + 7);
}

// Longer than a round of all steps takes, whenever it begins.
TEST_F(RehearsalTest, ATemporaryLoadMakesNoModelLookExpensive) {
  for (Nanos from{0}; from < milliseconds(600); from += milliseconds(20)) {
    Machine machine;
    machine.busy_from = from;
    machine.busy_until = from + milliseconds(100);
    EXPECT_LT(WorstError(machine), 1e-6) << from.count() << " ns";
  }
}

TEST_F(RehearsalTest, LetsOthersGoBetweenItsStepsAndDoesNotCountTheirTime) {
  constexpr int kTurns = 20;
  Machine machine;
  int taken = 0;  // by the other thread; read and written with a turn
  int seen = 0;
  std::thread other;
  machine.during_pass = [&] {
    seen = taken;
    if (!other.joinable()) {
      other = std::thread([&] {
        for (int i = 0; i < kTurns; ++i) {
          const Turn turn(&machine.turns);
          machine.clock.Advance(std::chrono::seconds(1));
          ++taken;
        }
      });
    }
    while (taken < kTurns && machine.turns.waiting() == 0) std::this_thread::yield();
  };
  EXPECT_LT(WorstError(machine), 1e-6);
  EXPECT_EQ(seen, kTurns);
  other.join();
}

TEST_F(RehearsalTest, StaysWithinThePoolAndTheLongestSequence) {
  scope_.num_blocks = 8;  // a block for each of 8 sequences
  Machine machine;
  WorstError(machine);
  EXPECT_LT(seen_.block, 8);
  EXPECT_EQ(seen_.context, 8 * 8 - 1);
  for (const auto& [positions, longest] : {std::pair(12, 12), std::pair(2, 2), std::pair(1, 1)}) {
    seen_ = {};
    config_.max_seq_len = positions;
    Run(machine);
    EXPECT_LE(seen_.context, longest);
  }
}

TEST_F(RehearsalTest, WithLookUpsAloneDraftsAreFoundInTheText) {
  scope_.draft_model = false;
  config_.lookup_ngram = 2;
  Machine machine;
  const CostTable costs = Run(machine);
  EXPECT_EQ(costs.Seconds(ModelIndex::kDraft, 1), 0.0);
  for (const int32_t rows : {1, 2, 16, 32, 64, 128}) {
    EXPECT_NEAR(costs.Seconds(ModelIndex::kTarget, rows) / Price(ModelIndex::kTarget, rows), 1.0,
                1e-6)
        << rows;
  }
}

TEST_F(RehearsalTest, EndsSoonWhereAPassTakesLong) {
  Machine machine;
  machine.slowdown = 400;
  const Nanos start = machine.clock.Now();
  const CostTable costs = Run(machine);
  EXPECT_LT(machine.clock.Now() - start, std::chrono::seconds(5));
  EXPECT_NEAR(costs.Seconds(ModelIndex::kTarget, 1) / Price(ModelIndex::kTarget, 1), 400, 1e-3);
  EXPECT_NEAR(costs.Seconds(ModelIndex::kTarget, 4) / Price(ModelIndex::kTarget, 4), 400, 1e-3);
  EXPECT_NEAR(costs.Seconds(ModelIndex::kDraft, 1) / Price(ModelIndex::kDraft, 1), 400, 1e-3);
}

// A price that there was no time to find would be none, and what it belongs to free.
TEST_F(RehearsalTest, WhereAPassTakesVeryLongNothingLooksFree) {
  for (const int slowdown : {400, 800, 1600, 4000}) {
    Machine machine;
    machine.slowdown = slowdown;
    const CostTable costs = Run(machine);
    if (costs.Seconds(ModelIndex::kTarget, 1) == 0.0) continue;  // nothing is drafted
    EXPECT_GT(costs.Seconds(ModelIndex::kDraft, 1), 0.0) << slowdown;
    EXPECT_GT(costs.CatchUpSeconds(1), 0.0) << slowdown;
    EXPECT_GT(costs.Seconds(ModelIndex::kTarget, 9), costs.Seconds(ModelIndex::kTarget, 1))
        << slowdown;
  }
}

TEST_F(RehearsalTest, LeavesNothingBehindThatChangesAnAnswer) {
  for (const ExecutorKind kind : {ExecutorKind::kHost, ExecutorKind::kDevice}) {
    FakeClock clock;
    TestSetup setup;
    setup.options = SmallOptions();
    setup.options.executor = kind;
    setup.options.draft_mode = DraftMode::kFixed;
    std::vector<Request> requests;
    for (int32_t i = 0; i < 12; ++i) {
      requests.push_back(SimpleRequest(CountingPrompt(3 + 5 * i, i), 30));
    }
    const auto expected = RunRequests(*MakeTestEngine(setup, clock), requests);
    setup.rehearse = true;
    const auto got = RunRequests(*MakeTestEngine(setup, clock), requests);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens);
  }
}

}  // namespace
}  // namespace tandem
