// A constraint whose mask takes its time holds up its own sequence and no other.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

// Closed, it holds whoever passes.
class Gate {
 public:
  void Close() { closed_ = true; }
  void Open() {
    closed_ = false;
    closed_.notify_all();
  }
  void Pass() {
    ++held_;
    closed_.wait(true);
    --held_;
  }
  bool HoldsSomebody() const { return closed_ && held_ > 0; }

 private:
  std::atomic<bool> closed_ = false;
  std::atomic<int> held_ = 0;
};

// Every token but multiples of 3. The mask after `slow_after` tokens, drafts included, passes the
// gate.
class Slow final : public TokenConstraint {
 public:
  Slow(std::shared_ptr<Gate> gate, size_t slow_after)
      : gate_(std::move(gate)), slow_after_(slow_after) {}
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    if (committed_ + ahead.size() == slow_after_) gate_->Pass();
    for (int32_t token = 0; token < 48; token += 3) allowed[token / 32] &= ~(1u << (token % 32));
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    for (int32_t i = 0; i < num_tokens; ++i) EXPECT_NE(tokens[i] % 3, 0);
    committed_ += static_cast<size_t>(num_tokens);
  }
  std::unique_ptr<TokenConstraint> Clone() const override { return std::make_unique<Slow>(*this); }

 private:
  std::shared_ptr<Gate> gate_;
  size_t slow_after_;
  size_t committed_ = 0;
};

struct SlowCase {
  DraftMode draft_mode = DraftMode::kOff;
  int32_t lookup_ngram = 0;
  int32_t steps_in_flight = 0;
};

class SlowConstraintTest : public testing::TestWithParam<SlowCase> {
 protected:
  void SetUp() override {
    setup_.options = SmallOptions();
    setup_.options.executor = TestExecutor();
    setup_.options.draft_mode = GetParam().draft_mode;
    setup_.options.lookup_ngram = GetParam().lookup_ngram;
    setup_.options.steps_in_flight = GetParam().steps_in_flight;
    setup_.draft.share = 0.97;
  }
  Request SlowRequest(size_t slow_after) const {
    Request request = SimpleRequest({5, 6, 7}, 30);
    request.constraint = std::make_shared<Slow>(gate_, slow_after);
    return request;
  }
  // Neighbours: without a constraint, and with one that is fast.
  std::vector<Request> Neighbours() const {
    std::vector<Request> requests = {SimpleRequest({1, 2}, 40), SimpleRequest({3, 4}, 40)};
    requests[1].constraint = std::make_shared<Slow>(gate_, 1u << 20);
    return requests;
  }
  static bool Ended(const Outputs& outputs, RequestId id) {
    const auto found = outputs.find({id, 0});
    return found != outputs.end() && found->second.finish != FinishReason::kNone;
  }

  FakeClock clock_;
  TestSetup setup_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

TEST_P(SlowConstraintTest, NeighboursGoOnAndNoTokenChanges) {
  for (const size_t slow_after : {0u, 1u, 4u}) {
    const auto engine = MakeTestEngine(setup_, clock_);
    std::vector<Request> requests = Neighbours();
    requests.push_back(SlowRequest(slow_after));
    // Keeps the engine busy when the others have ended.
    requests.push_back(SimpleRequest({8, 9}, 200));
    const auto expected = RunRequests(*engine, requests);

    gate_->Close();
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine->Submit(request).value());
    Outputs outputs;
    int steps = 0;
    while (!(Ended(outputs, ids[0]) && Ended(outputs, ids[1])) && ++steps < 200) {
      engine->Step();
      ReadEvents(*engine, outputs);
    }
    EXPECT_LT(steps, 200);
    EXPECT_TRUE(gate_->HoldsSomebody());
    EXPECT_FALSE(Ended(outputs, ids[2]));
    // The mask may have been one after drafts.
    const size_t drawn = outputs[std::pair(ids[2], 0)].tokens.size();
    EXPECT_LE(drawn, slow_after);
    if (GetParam().draft_mode == DraftMode::kOff) {
      EXPECT_EQ(drawn, slow_after);
    }
    gate_->Open();
    RunToEnd(*engine, outputs, ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(outputs[std::pair(ids[i], 0)].tokens, expected[i][0].tokens) << i;
    }
    while (engine->Step()) {
    }
    EXPECT_EQ(engine->Stats().kv.referenced_blocks, 0);
    engine->CheckIntegrity();
  }
}

TEST_P(SlowConstraintTest, OneThatIsCancelledLeavesAtOnce) {
  const auto engine = MakeTestEngine(setup_, clock_);
  gate_->Close();
  Outputs outputs;
  const RequestId other = engine->Submit(SimpleRequest({1, 2}, 60)).value();
  const RequestId slow = engine->Submit(SlowRequest(2)).value();
  for (int step = 0; step < 200 && !gate_->HoldsSomebody(); ++step) {
    engine->Step();
    ReadEvents(*engine, outputs);
  }
  EXPECT_TRUE(gate_->HoldsSomebody());
  engine->Cancel(slow);
  for (int step = 0; step < 5; ++step) {
    engine->Step();
    ReadEvents(*engine, outputs);
  }
  EXPECT_EQ(outputs[std::pair(slow, 0)].finish, FinishReason::kCancelled);
  EXPECT_FALSE(Ended(outputs, other));
  // The slot is another's, while a thread is still at the constraint.
  const RequestId next = engine->Submit(SlowRequest(1u << 20)).value();
  RunToEnd(*engine, outputs, 3);
  EXPECT_EQ(outputs[std::pair(next, 0)].tokens.size(), 30u);
  gate_->Open();
}

TEST_P(SlowConstraintTest, WhoComesWhileItIsWaitedForGoesOn) {
  setup_.long_mask_patience = std::chrono::milliseconds(1);
  const auto engine = MakeTestEngine(setup_, clock_);
  const auto expected = RunRequests(*engine, {SlowRequest(2)});
  gate_->Close();
  Outputs outputs;
  const RequestId slow = engine->Submit(SlowRequest(2)).value();
  for (int step = 0; step < 50 && !gate_->HoldsSomebody(); ++step) engine->Step();
  EXPECT_TRUE(gate_->HoldsSomebody());
  const RequestId other = engine->Submit(SimpleRequest({1, 2}, 20)).value();
  for (int step = 0; step < 200 && !Ended(outputs, other); ++step) {
    engine->Step();
    ReadEvents(*engine, outputs);
  }
  EXPECT_TRUE(Ended(outputs, other));
  EXPECT_FALSE(Ended(outputs, slow));
  gate_->Open();
  RunToEnd(*engine, outputs, 2);
  EXPECT_EQ(outputs[std::pair(slow, 0)].tokens, expected[0][0].tokens);
}

TEST_P(SlowConstraintTest, DraftsOfAClientHoldUpNeighboursForALimitedTime) {
  setup_.long_mask_patience = std::chrono::milliseconds(1);
  const auto engine = MakeTestEngine(setup_, clock_);
  Request request = SlowRequest(1);
  const auto expected = RunRequests(*engine, {request});
  const std::vector<int32_t>& tokens = expected[0][0].tokens;
  request.draft.tokens.assign(tokens.begin(), tokens.begin() + 3);
  gate_->Close();
  Outputs outputs;
  const RequestId slow = engine->Submit(request).value();
  const RequestId other = engine->Submit(SimpleRequest({1, 2}, 40)).value();
  for (int step = 0; step < 200 && !Ended(outputs, other); ++step) {
    engine->Step();
    ReadEvents(*engine, outputs);
  }
  EXPECT_TRUE(Ended(outputs, other));
  EXPECT_TRUE(gate_->HoldsSomebody());
  gate_->Open();
  RunToEnd(*engine, outputs, 2);
  EXPECT_EQ(outputs[std::pair(slow, 0)].tokens, tokens);
}

// What a constraint holds counts against others' grammars, and perhaps no step ever follows.
TEST_P(SlowConstraintTest, NobodyHoldsTheConstraintOfASequenceThatHasEnded) {
  const auto engine = MakeTestEngine(setup_, clock_);
  RunRequests(*engine, {SlowRequest(1u << 20), SlowRequest(1u << 20), SimpleRequest({1, 2}, 50)});
  while (engine->Step()) {
  }
  EXPECT_EQ(gate_.use_count(), 1);

  gate_->Close();
  Outputs outputs;
  const RequestId slow = engine->Submit(SlowRequest(2)).value();
  engine->Submit(SimpleRequest({1, 2}, 60)).value();
  for (int step = 0; step < 200 && !gate_->HoldsSomebody(); ++step) engine->Step();
  engine->Cancel(slow);
  RunToEnd(*engine, outputs, 2);
  while (engine->Step()) {
  }
  gate_->Open();
  while (gate_.use_count() > 1) std::this_thread::yield();
}

TEST_P(SlowConstraintTest, WhereNothingElseMovesItIsWaitedFor) {
  const auto engine = MakeTestEngine(setup_, clock_);
  gate_->Close();
  std::thread opener([this] {
    while (!gate_->HoldsSomebody()) std::this_thread::yield();
    gate_->Open();
  });
  const auto outputs = RunRequests(*engine, {SlowRequest(3), SlowRequest(3)});
  opener.join();
  EXPECT_EQ(outputs[0][0].tokens.size(), 30u);
  EXPECT_EQ(outputs[1][0].tokens, outputs[0][0].tokens);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, SlowConstraintTest,
    testing::Values(SlowCase{}, SlowCase{.steps_in_flight = 1},
                    SlowCase{.draft_mode = DraftMode::kFixed},
                    SlowCase{.draft_mode = DraftMode::kFixed, .steps_in_flight = 1},
                    SlowCase{.draft_mode = DraftMode::kFixed, .lookup_ngram = 2},
                    SlowCase{
                        .draft_mode = DraftMode::kFixed, .lookup_ngram = 2, .steps_in_flight = 1}));

}  // namespace
}  // namespace tandem
