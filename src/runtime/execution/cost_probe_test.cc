// The measurement at start, with passes whose duration is set on a fake clock.
#include "runtime/execution/cost_probe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kMaxRows = 64;
constexpr int64_t kVocab = 8;
constexpr int kSlowdown = 3;

// While the machine is busy with other work, everything takes three times as long.
struct Machine {
  FakeClock clock;
  Nanos busy_from{0};
  Nanos busy_until{0};

  void Work(Nanos time) {
    const bool busy = clock.Now() >= busy_from && clock.Now() < busy_until;
    clock.Advance(busy ? time * kSlowdown : time);
  }
};

class PricedPass final : public ForwardPass {
 public:
  PricedPass(Machine& machine, Nanos pass, Nanos row)
      : machine_(machine), pass_(pass), row_(row), logits_(kMaxRows * kVocab) {}

  Tensor Forward(const ops::BatchView& batch, const ops::KvPool&) override {
    machine_.Work(Price(batch.num_rows));
    return {logits_.data(), DType::kF32, {batch.num_logits, kVocab}, Device{}};
  }
  int64_t vocab_size() const override { return kVocab; }

  Nanos Price(int32_t rows) const { return pass_ + row_ * rows; }

 private:
  Machine& machine_;
  const Nanos pass_, row_;
  std::vector<float> logits_;
};

class CostProbeTest : public testing::Test {
 protected:
  CostProbeTest() {
    ops::KvGroup& group = pool_.groups.emplace_back();
    group.num_blocks = kMaxRows;
    group.block_tokens = 1;
  }

  // The largest relative error of a cost.
  double WorstError(Nanos busy_from, Nanos busy_until) {
    Machine machine;
    machine.busy_from = busy_from;
    machine.busy_until = busy_until;
    PricedPass target(machine, milliseconds(1), Nanos(10'000));
    PricedPass draft(machine, Nanos(50'000), Nanos(1'000));
    const CostSubject subjects[] = {{ModelIndex::kTarget, &target, &pool_, kMaxRows, kMaxRows},
                                    {ModelIndex::kDraft, &draft, &pool_, kMaxRows, 8}};
    CostTable costs;
    EXPECT_TRUE(MeasureCosts(subjects, TestBackend(), machine.clock, costs).ok());
    double worst = 0.0;
    for (const int32_t rows : {1, 2, 3, 4, 5, 8, 16, 32, 64}) {
      for (const auto& [model, pass] :
           {std::pair(ModelIndex::kTarget, &target), std::pair(ModelIndex::kDraft, &draft)}) {
        const double price = std::chrono::duration<double>(pass->Price(rows)).count();
        worst = std::max(worst, std::abs(costs.Seconds(model, rows) / price - 1.0));
      }
    }
    return worst;
  }

  ops::KvPool pool_;
};

TEST_F(CostProbeTest, FindsThePriceOfEveryNumberOfRows) {
  EXPECT_LT(WorstError(Nanos(0), Nanos(0)), 1e-6);
}

// Longer than all the passes of the draft take, whenever it begins.
TEST_F(CostProbeTest, ATemporaryLoadMakesNoModelLookExpensive) {
  for (Nanos from{0}; from < milliseconds(600); from += milliseconds(10)) {
    EXPECT_LT(WorstError(from, from + milliseconds(100)), 1e-6) << from.count() << " ns";
  }
}

}  // namespace
}  // namespace tandem
