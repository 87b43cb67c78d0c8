#include "runtime/scheduling/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

namespace tandem {
namespace {

constexpr int32_t kBlock = 8;

// Sequences and a scheduler, with a device that computes the plan and draws token 7; drafts are all
// accepted or all rejected.
class SchedulerTest : public testing::Test {
 protected:
  void Make(int32_t num_blocks) {
    kv_ = std::make_unique<KvCache>(KvCacheOptions{num_blocks, kBlock, true});
    costs_.Set(ModelIndex::kTarget, target_prices_);
    speculation_ = std::make_unique<Speculation>(limits_.max_batch_size, limits_.max_draft_len,
                                                 costs_, acceptance_prior_);
    scheduler_ = std::make_unique<Scheduler>(limits_, *kv_, *speculation_);
  }

  void SetUp() override {
    limits_.max_batch_size = 4;
    limits_.max_num_tokens = 32;
    limits_.max_logits_rows = 40;
    limits_.max_launched = 2;
    Make(64);
  }

  Sequence& Add(int32_t prompt, int32_t max_tokens, double priority = 0.5, int32_t first = -1) {
    return *AddChoices(1, prompt, max_tokens, priority, first)[0];
  }

  // The choices of one request, whose prompt is `first` and the numbers after it.
  std::vector<Sequence*> AddChoices(int32_t count, int32_t prompt, int32_t max_tokens,
                                    double priority = 0.5, int32_t first = -1) {
    auto open = std::make_shared<OpenRequest>();
    open->id = sequences_.size() + 1;
    open->request.max_tokens = max_tokens;
    open->request.priority = priority;
    open->request.num_choices = count;
    if (first < 0) first = static_cast<int32_t>(open->id) * 1000;
    open->request.prompt.resize(static_cast<size_t>(prompt));
    std::iota(open->request.prompt.begin(), open->request.prompt.end(), first);
    std::vector<Sequence*> choices;
    for (int32_t choice = 0; choice < count; ++choice) {
      auto sequence = std::make_unique<Sequence>();
      sequence->open = open;
      sequence->choice = choice;
      sequence->tokens = open->request.prompt;
      sequence->max_length = prompt + max_tokens;
      sequences_.push_back(std::move(sequence));
      scheduler_->Enqueue(*sequences_.back());
      choices.push_back(sequences_.back().get());
    }
    return choices;
  }

  const StepPlan& Plan() {
    scheduler_->Plan(step_, plan_);
    EXPECT_LE(plan_.batch.TargetRows(), limits_.max_num_tokens);
    return plan_;
  }

  void Land(bool drafts_hold = false) {
    for (size_t i = 0; i < plan_.sequences.size(); ++i) {
      Sequence& s = *plan_.sequences[i];
      const SequencePlan& item = plan_.batch.sequences[i];
      s.WorkOf(step_) = {};
      s.computed[0] += item.target_tokens;
      if (item.samples) {
        const int32_t held = drafts_hold ? item.num_drafts : 0;
        for (int32_t t = 0; t <= held; ++t) s.tokens.push_back(7);
        s.computed[0] = static_cast<int32_t>(s.tokens.size()) - 1;
        if (item.num_drafts > 0) s.computed[1] = s.computed[0];
      }
      kv_->Publish(std::span(s.tokens).first(static_cast<size_t>(s.computed[0])), s.blocks,
                   s.computed);
    }
    ++step_;
    kv_->CheckIntegrity();
  }
  void Step() {
    Plan();
    Land();
  }
  const SequencePlan* PlanOf(const Sequence& s) const {
    for (size_t i = 0; i < plan_.sequences.size(); ++i) {
      if (plan_.sequences[i] == &s) return &plan_.batch.sequences[i];
    }
    return nullptr;
  }

  SchedulerLimits limits_;
  std::vector<CostTable::Point> target_prices_ = {{1, 1.0}};
  CostTable costs_;
  double acceptance_prior_ = 0.7;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Speculation> speculation_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  StepPlan plan_;
  uint64_t step_ = 0;
};

TEST_F(SchedulerTest, MixesPromptChunksWithDecodesUnderOneBudget) {
  Sequence& a = Add(10, 20);
  Step();
  Sequence& b = Add(50, 20);
  Plan();
  EXPECT_EQ(PlanOf(a)->target_tokens, 1);
  EXPECT_TRUE(PlanOf(a)->samples);
  EXPECT_EQ(PlanOf(b)->target_tokens, 31);
  EXPECT_FALSE(PlanOf(b)->samples);
  Land();
  Plan();
  EXPECT_EQ(PlanOf(b)->target_tokens, 19);
  EXPECT_TRUE(PlanOf(b)->samples);
}

TEST_F(SchedulerTest, APromptWhoseLogitsAreKeptFitsTheSpareRowsOfLogits) {
  limits_.max_logits_rows = 4 + 9;
  Make(64);
  Add(25, 3, 0.5, 100);
  Step();
  Add(8, 20);
  Sequence& kept = Add(25, 3, 0.5, 100);  // the same prompt, which is in the cache
  kept.open->request.return_context_logits = true;
  int32_t computed = 0;
  while (kept.output_tokens() == 0) {
    Plan();
    ASSERT_NE(PlanOf(kept), nullptr);
    EXPECT_TRUE(PlanOf(kept)->keeps_context);
    EXPECT_LE(PlanOf(kept)->target_tokens, 10);
    computed += PlanOf(kept)->target_tokens;
    Land();
  }
  EXPECT_EQ(computed, 25);
  Plan();
  EXPECT_FALSE(PlanOf(kept)->keeps_context);
}

TEST_F(SchedulerTest, DraftsOfClientsAreVerifiedAfterTheirPromptsOneStepsWorthAtATime) {
  limits_.max_sent_drafts = 10;
  Make(64);
  Sequence& a = Add(12, 20);
  Sequence& b = Add(6, 20);
  Sequence& c = Add(1, 20);
  a.sent_drafts = 6;
  b.sent_drafts = 7;
  c.sent_drafts = 3;
  Plan();
  EXPECT_EQ(PlanOf(a)->target_tokens, 11);
  EXPECT_EQ(PlanOf(b)->target_tokens, 5);
  EXPECT_FALSE(PlanOf(a)->samples || PlanOf(b)->samples);
  EXPECT_TRUE(PlanOf(c)->sent) << "one token is left to compute at its start";
  EXPECT_EQ(PlanOf(c)->num_drafts, 3);
  Land();
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts, 6);
  EXPECT_TRUE(PlanOf(a)->sent && PlanOf(a)->samples);
  EXPECT_EQ(PlanOf(b), nullptr) << "11 rows are for the drafts of clients";
  EXPECT_EQ(PlanOf(c)->num_drafts, 0);
  Land(true);
  EXPECT_EQ(a.output_tokens(), 7);
  Plan();
  EXPECT_FALSE(PlanOf(a)->sent);
  EXPECT_EQ(PlanOf(b)->num_drafts, 7);
}

TEST_F(SchedulerTest, WithoutChunksAPromptWaitsForAStepThatHoldsIt) {
  limits_.chunked_prefill = false;
  Make(64);
  Sequence& a = Add(20, 20);
  Sequence& b = Add(20, 20);
  Plan();
  EXPECT_EQ(PlanOf(a)->target_tokens, 20);
  EXPECT_EQ(PlanOf(b), nullptr);
  Land();
  Plan();
  EXPECT_EQ(PlanOf(b)->target_tokens, 20);
}

// As after a pause, when the output makes the whole longer than a step.
TEST_F(SchedulerTest, APrefixIsComputedInOneStep) {
  limits_.chunked_prefill = false;
  Make(64);
  const int32_t most = limits_.max_num_tokens;
  Sequence& other = Add(4, 20);
  Step();
  Sequence& a = Add(most + 10, 20);
  a.open->layouts[0].prefix_len = most - 2;
  Plan();
  EXPECT_EQ(PlanOf(other)->target_tokens, 1);
  EXPECT_EQ(PlanOf(a)->target_tokens, most - 1);
  Land();
  Plan();
  EXPECT_EQ(PlanOf(a)->target_tokens, 11);
  Land();
  // It waits for a step that has room for all of it.
  Sequence& b = Add(most + 10, 20);
  b.open->layouts[0].prefix_len = most;
  Step();
  EXPECT_EQ(PlanOf(b), nullptr);
  scheduler_->Release(other);
  scheduler_->Release(a);
  Plan();
  EXPECT_EQ(PlanOf(b)->target_tokens, most);
}

TEST_F(SchedulerTest, AChoiceWaitsForTheBlocksThatAnotherComputes) {
  Sequence& a = Add(20, 5, 0.5, 100);
  Sequence& b = Add(20, 5, 0.5, 100);
  Sequence& other = Add(9, 5);
  Plan();
  EXPECT_NE(PlanOf(a), nullptr);
  EXPECT_EQ(PlanOf(b), nullptr);
  EXPECT_NE(PlanOf(other), nullptr) << "nobody else waits";
  Land();
  Plan();
  EXPECT_EQ(PlanOf(b)->target_tokens, 4);
  EXPECT_EQ(b.blocks[0], a.blocks[0]);
  EXPECT_EQ(b.blocks[1], a.blocks[1]);
  EXPECT_EQ(b.usage.cached_tokens, 16);
}

TEST_F(SchedulerTest, PausesTheLastStartedAndStartsItAgain) {
  Make(6);
  Sequence& a = Add(16, 24);
  Step();
  Sequence& b = Add(16, 24);
  for (int i = 0; i < 12 && b.phase != Phase::kWaiting; ++i) Step();
  Step();
  while (a.phase == Phase::kActive && scheduler_->preemptions() == 0) Step();
  EXPECT_EQ(scheduler_->preemptions(), 1);
  EXPECT_EQ(b.phase, Phase::kWaiting);
  EXPECT_TRUE(b.blocks.empty());
  EXPECT_EQ(a.phase, Phase::kActive);
  Sequence& c = Add(8, 8);
  EXPECT_EQ(scheduler_->paused(), 1) << "another waits that has never started";
  scheduler_->Dequeue(c);
  EXPECT_EQ(scheduler_->paused(), 1);
  a.phase = Phase::kFinished;
  scheduler_->Release(a);
  Plan();
  EXPECT_EQ(b.phase, Phase::kActive);
  EXPECT_EQ(scheduler_->paused(), 0);
  EXPECT_GT(b.computed[0], 0) << "its own blocks were still in the tree";
}

TEST_F(SchedulerTest, APausedSequenceThatIsCancelledIsNotCountedAnyMore) {
  Make(6);
  Add(16, 24);
  Step();
  Sequence& last = Add(16, 24);
  while (scheduler_->preemptions() == 0) Step();
  ASSERT_EQ(last.phase, Phase::kWaiting);
  EXPECT_EQ(scheduler_->paused(), 1);
  scheduler_->Dequeue(last);
  EXPECT_EQ(scheduler_->paused(), 0);
}

TEST_F(SchedulerTest, PausesTheLeastImportantFirst) {
  Make(6);
  Sequence& low = Add(16, 24, 0.1);
  Step();
  Sequence& high = Add(16, 24, 0.9);
  while (scheduler_->preemptions() == 0) Step();
  EXPECT_EQ(low.phase, Phase::kWaiting);
  EXPECT_EQ(high.phase, Phase::kActive);
}

TEST_F(SchedulerTest, ReservesTheWholeLengthWhereNothingMayBeEvicted) {
  limits_.policy = SchedulerPolicy::kGuaranteedNoEvict;
  Make(10);
  Sequence& a = Add(8, 40);  // six blocks
  Sequence& b = Add(8, 40);
  Plan();
  EXPECT_EQ(a.blocks.size(), 6u);
  EXPECT_EQ(b.phase, Phase::kWaiting);
}

TEST_F(SchedulerTest, AStaticBatchStartsOnlyWhenTheOneBeforeHasEnded) {
  limits_.policy = SchedulerPolicy::kStaticBatch;
  Make(64);
  Sequence& a = Add(8, 4);
  Step();
  Sequence& b = Add(8, 4);
  Step();
  EXPECT_EQ(b.phase, Phase::kWaiting);
  a.phase = Phase::kFinished;
  scheduler_->Release(a);
  Plan();
  EXPECT_NE(PlanOf(b), nullptr);
}

TEST_F(SchedulerTest, ASequenceAloneGivesUpTheCopiesOfItsOwnPrefix) {
  Make(6);
  Sequence& first = Add(9, 30, 0.5, 100);
  while (first.tokens.size() < 35) Step();
  first.phase = Phase::kFinished;
  scheduler_->Release(first);
  Sequence& second = Add(9, 39, 0.5, 100);  // six blocks: the whole pool
  for (int i = 0; i < 60 && second.tokens.size() < 48; ++i) Step();
  EXPECT_EQ(second.tokens.size(), 48u);
}

TEST_F(SchedulerTest, APromptThatNeedsTheWholePoolStartsWithoutThePartialMatch) {
  for (const SchedulerPolicy policy :
       {SchedulerPolicy::kMaxUtilization, SchedulerPolicy::kGuaranteedNoEvict,
        SchedulerPolicy::kStaticBatch}) {
    limits_.policy = policy;
    limits_.max_num_tokens = 64;
    Make(6);
    Sequence& first = Add(40, 8, 0.5, 100);
    Step();
    first.phase = Phase::kFinished;
    scheduler_->Release(first);
    Sequence& second = Add(40, 8, 0.5, 100);
    std::iota(second.tokens.begin() + 3, second.tokens.end(), 900);  // three tokens are shared
    Plan();
    EXPECT_NE(PlanOf(second), nullptr);
    Land();
  }
}

TEST_F(SchedulerTest, CountsAPromptOnceHoweverOftenItIsTried) {
  limits_.policy = SchedulerPolicy::kGuaranteedNoEvict;
  Make(10);
  Add(8, 40);
  Add(8, 40);
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(kv_->Stats().lookup_tokens, 8) << "the second has not started";
}

TEST_F(SchedulerTest, ARequestWithManyChoicesGivesASlotToOneThatWaits) {
  const std::vector<Sequence*> many = AddChoices(8, 4, 40);
  Step();
  Step();
  ASSERT_EQ(scheduler_->active().size(), 4u);
  Sequence& single = Add(4, 4);
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_EQ(single.phase, Phase::kActive);
  EXPECT_EQ(scheduler_->active().size(), 4u);
  EXPECT_EQ(scheduler_->preemptions(), 1) << "three slots against one: no more are given";
}

TEST_F(SchedulerTest, SlotsGoRoundBetweenTheRequestsThatWait) {
  limits_.policy = SchedulerPolicy::kGuaranteedNoEvict;
  Make(64);
  const std::vector<Sequence*> first = AddChoices(4, 4, 40);
  const std::vector<Sequence*> second = AddChoices(4, 4, 40);
  Plan();
  EXPECT_EQ(std::ranges::count(first, Phase::kActive, &Sequence::phase), 2);
  EXPECT_EQ(std::ranges::count(second, Phase::kActive, &Sequence::phase), 2);
}

TEST_F(SchedulerTest, NoChoiceIsPausedBeforeItHasDrawnTokens) {
  AddChoices(8, 4, 40);
  Step();
  AddChoices(1, 4, 40);
  for (int i = 0; i < 3; ++i) {
    Step();
    EXPECT_EQ(scheduler_->preemptions(), 0) << i;
  }
  Step();
  EXPECT_EQ(scheduler_->preemptions(), 1);
}

TEST_F(SchedulerTest, APausedChoiceStartsAfterTheRequestsThatWait) {
  const std::vector<Sequence*> many = AddChoices(4, 4, 40);
  for (int i = 0; i < 5; ++i) Step();
  std::vector<Sequence*> singles;
  for (int i = 0; i < 4; ++i) singles.push_back(&Add(4, 40));
  Plan();
  EXPECT_EQ(scheduler_->preemptions(), 3) << "one slot for each that waits, and one is left";
  EXPECT_EQ(std::ranges::count(singles, Phase::kActive, &Sequence::phase), 3);
  Land();
  singles[0]->phase = Phase::kFinished;
  scheduler_->Release(*singles[0]);
  Plan();
  EXPECT_EQ(singles[3]->phase, Phase::kActive);
  EXPECT_EQ(std::ranges::count(many, Phase::kActive, &Sequence::phase), 1);
}

TEST_F(SchedulerTest, TheSlotOfARequestThatEndedIsKeptForTheNextOne) {
  Sequence& single = Add(4, 40);
  const std::vector<Sequence*> many = AddChoices(8, 4, 40);
  const auto held = [&] { return std::ranges::count(many, Phase::kActive, &Sequence::phase); };
  Step();
  EXPECT_EQ(held(), 3) << "more than its share of two: nobody else wants the last slot";
  single.phase = Phase::kFinished;
  scheduler_->Release(single);
  Step();
  EXPECT_EQ(held(), 3);
  Sequence& next = Add(4, 40);
  Step();
  EXPECT_EQ(next.phase, Phase::kActive);
  next.phase = Phase::kFinished;
  scheduler_->Release(next);
  for (int i = 0; i < 10; ++i) Step();
  EXPECT_EQ(held(), 4) << "no other one came";
  EXPECT_EQ(scheduler_->preemptions(), 0);
}

TEST_F(SchedulerTest, NoSlotIsKeptWhenNothingIsOpen) {
  for (int i = 0; i < 4; ++i) Add(4, 40);
  Step();
  for (const auto& sequence : sequences_) {
    sequence->phase = Phase::kFinished;
    scheduler_->Release(*sequence);
  }
  AddChoices(8, 4, 40);
  Step();
  EXPECT_EQ(scheduler_->active().size(), 4u);
}

TEST_F(SchedulerTest, ASlotIsNotTakenFromAMoreImportantRequest) {
  AddChoices(8, 4, 40, 0.9);
  Step();
  Step();
  Sequence& single = Add(4, 4, 0.5);
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_EQ(single.phase, Phase::kWaiting);
}

class DraftSchedulerTest : public SchedulerTest {
 protected:
  void SetUp() override {
    limits_.draft_mode = DraftMode::kFixed;
    limits_.fixed_draft_len = 4;
    limits_.max_draft_len = 4;
    limits_.draft_model = true;
    limits_.draft_max_positions = 1000;
    SchedulerTest::SetUp();
  }
};

TEST_F(DraftSchedulerTest, NeverDraftsTheLastToken) {
  Sequence& a = Add(10, 4);
  Step();  // one token; three are left
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts, 2);
  Land();
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts, 1);
  Land();
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts, 0);
}

TEST_F(DraftSchedulerTest, DraftsLeaveLogitsToPromptsThatKeepTheirs) {
  limits_.max_logits_rows = 4 + 8;
  Make(64);
  Sequence& a = Add(4, 40);
  Sequence& b = Add(4, 40);
  Step();
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts + PlanOf(b)->num_drafts, 8);
  Land();
  Sequence& kept = Add(30, 3);
  kept.open->request.return_context_logits = true;
  Step();  // starts it
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts + PlanOf(b)->num_drafts, 4);
  EXPECT_EQ(PlanOf(kept)->target_tokens, 5);
}

TEST_F(DraftSchedulerTest, TheFirstRoundBringsTheDraftUpToDate) {
  Sequence& a = Add(10, 20);
  Step();
  Plan();
  EXPECT_EQ(PlanOf(a)->draft_tokens, 11);
  EXPECT_EQ(PlanOf(a)->num_drafts, 4);
}

TEST_F(DraftSchedulerTest, ALongCatchUpIsSplitOverStepsBeforeDrafting) {
  Sequence& a = Add(70, 20);
  Step(), Step(), Step();
  for (const int32_t expected : {32, 32}) {
    Plan();
    EXPECT_EQ(PlanOf(a)->draft_tokens, expected);
    EXPECT_EQ(PlanOf(a)->num_drafts, 0);
    a.computed[1] += PlanOf(a)->draft_tokens;
    Land();
  }
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts, 4);
  EXPECT_EQ(PlanOf(a)->draft_tokens, 73 - 64);
}

TEST_F(DraftSchedulerTest, DropsDraftsBeforeItPausesAnyone) {
  Make(4);
  Sequence& a = Add(14, 40);
  Sequence& b = Add(14, 40);
  Step();
  Plan();  // 15 known each: one more token fits the two blocks, drafts do not
  EXPECT_EQ(PlanOf(a)->num_drafts, 1);
  EXPECT_EQ(PlanOf(b)->num_drafts, 1);
  EXPECT_EQ(scheduler_->preemptions(), 0);
}

TEST_F(DraftSchedulerTest, ReservesForTheLongestAStepInFlightCanBe) {
  Sequence& a = Add(7, 40);
  Step();
  Plan();  // 8 known, up to four drafts: in flight
  ASSERT_EQ(PlanOf(a)->num_drafts, 4);
  ++step_;
  Plan();  // 9 to 13 known, and four drafts after them
  EXPECT_EQ(a.KnownLow(), 10);
  EXPECT_GE(static_cast<int32_t>(a.blocks.size()) * kBlock, 13 + 4);
  EXPECT_EQ(PlanOf(a)->target_tokens, 1);
  EXPECT_GE(PlanOf(a)->draft_tokens, 13 - a.computed[1]);
}

TEST_F(DraftSchedulerTest, DoesNotDraftPastTheDraftModelsContext) {
  limits_.draft_max_positions = 12;
  Make(64);
  Sequence& a = Add(10, 20);
  Step();
  Plan();  // 11 known: the draft computes positions up to 11 for two drafts
  EXPECT_EQ(PlanOf(a)->num_drafts, 2);
  Land(true);
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts, 0);
}

// Allows everything.
class NoConstraint final : public TokenConstraint {
 public:
  void FillMask(std::span<const int32_t>, std::span<uint32_t>) override {}
  void Commit(const int32_t*, int32_t) override {}
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<NoConstraint>();
  }
};

TEST_F(DraftSchedulerTest, PlansNoDraftsThatTheExecutorDoesNotMake) {
  for (const bool drafts_constrained : {true, false}) {
    limits_.drafts_constrained = drafts_constrained;
    Make(64);
    Sequence& plain = Add(10, 20);
    Sequence& constrained = Add(10, 20);
    constrained.constraint = std::make_unique<NoConstraint>();
    Step();
    Plan();
    EXPECT_EQ(PlanOf(plain)->num_drafts, 4);
    EXPECT_EQ(PlanOf(constrained)->num_drafts, drafts_constrained ? 4 : 0);
    EXPECT_EQ(PlanOf(constrained)->draft_tokens > 0, drafts_constrained);
  }
}

TEST_F(DraftSchedulerTest, DraftsLeaveRoomForPromptsAndTheBudget) {
  for (int i = 0; i < 3; ++i) Add(5, 40);
  Step();
  Sequence& waiting = Add(100, 10);
  Plan();
  EXPECT_LE(plan_.batch.TargetRows(), 32);
  ASSERT_NE(PlanOf(waiting), nullptr);
  EXPECT_GE(PlanOf(waiting)->target_tokens, 14);
}

// Steps that take a second whatever their rows, and a draft that takes a tenth of one per row.
class AdaptiveDraftSchedulerTest : public DraftSchedulerTest {
 protected:
  void SetUp() override {
    acceptance_prior_ = 0.8;
    DraftSchedulerTest::SetUp();
    limits_.draft_mode = DraftMode::kAdaptive;
    const CostTable::Point points[] = {{1, 0.1}, {2, 0.2}};
    costs_.Set(ModelIndex::kDraft, points);
    Make(64);
  }
  void End(Sequence& sequence) {
    sequence.phase = Phase::kFinished;
    speculation_->ObserveOutput(sequence.output_tokens());
    scheduler_->Release(sequence);
  }
};

TEST_F(AdaptiveDraftSchedulerTest, LearnsThatAnswersAreTooShortForTheDraftsPrompt) {
  Sequence& first = Add(25, 60);
  Step();
  Plan();
  EXPECT_GT(PlanOf(first)->num_drafts, 0) << "2.3 seconds, once, for 60 tokens";
  Land();
  End(first);
  for (int i = 0; i < 60; ++i) {
    Sequence& sequence = Add(25, 60);
    Step();
    End(sequence);  // after one token
  }
  Sequence& last = Add(25, 60);
  Step();
  Plan();
  EXPECT_EQ(PlanOf(last)->num_drafts, 0);
}

// Two drafts promise a little more than one, unless they count for less because of a catch-up.
TEST_F(DraftSchedulerTest, LookUpsHaveNothingToCatchUp) {
  limits_.draft_mode = DraftMode::kAdaptive;
  limits_.draft_model = false;
  acceptance_prior_ = 0.8;
  target_prices_ = {{1, 1.0}, {2, 1.5}, {3, 2.03}, {4, 3.5}};
  Make(64);
  Sequence& a = Add(10, 40);
  Step();
  Plan();
  EXPECT_EQ(PlanOf(a)->num_drafts, 2);
}

}  // namespace
}  // namespace tandem
