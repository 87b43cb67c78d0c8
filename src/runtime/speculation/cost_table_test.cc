#include "runtime/speculation/cost_table.h"

#include <gtest/gtest.h>

#include "runtime/speculation/testing/made_up_costs.h"

namespace tandem {
namespace {

TEST(CostTable, IsLinearBetweenPointsAndBeyondTheLast) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {3, 3.0}, {5, 3.0}, {7, 7.0}};
  costs.Set(ModelIndex::kTarget, points);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 0), 0.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 2), 2.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 4), 3.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 8), 9.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kDraft, 8), 0.0);
}

TEST(CostTable, NeverFallsWithMoreRows) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 2.0}, {2, 1.5}, {4, 3.0}};
  costs.Set(ModelIndex::kTarget, points);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 1), 1.5);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 2), 1.5);
}

TEST(CostTable, FollowsWhatIsObservedAndShrugsOffAHiccup) {
  CostTable costs = MemoryBoundCosts();
  const double before = costs.Seconds(ModelIndex::kTarget, 100);
  costs.Observe(ModelIndex::kTarget, 1, 1000.0);
  EXPECT_LT(costs.Seconds(ModelIndex::kTarget, 100), before * 1.2);
  for (int i = 0; i < 300; ++i) costs.Observe(ModelIndex::kTarget, 1, 2.0);
  EXPECT_NEAR(costs.Seconds(ModelIndex::kTarget, 100), 2 * before, 0.1 * before);
}

TEST(CostTable, ADraftThatIsNotObservedFollowsTheTarget) {
  CostTable costs = MemoryBoundCosts();
  const double before = costs.Seconds(ModelIndex::kDraft, 1);
  for (int i = 0; i < 300; ++i) costs.Observe(ModelIndex::kDraft, 1, 1000.0);
  EXPECT_GT(costs.Seconds(ModelIndex::kDraft, 1), 10 * before);
  for (int i = 0; i < 3000; ++i) costs.Observe(ModelIndex::kTarget, 1, 1.0);
  EXPECT_LT(costs.Seconds(ModelIndex::kDraft, 1), 1.2 * before);
}

TEST(CostTable, LearnsWhatVerifyingTakesBesidePlainPasses) {
  CostTable costs = MemoryBoundCosts();
  for (int i = 0; i < 300; ++i) {
    costs.Observe(ModelIndex::kTarget, 1, 2.0);
    costs.ObserveVerify(101, 2 * 2.0 * 1.3);
  }
  EXPECT_NEAR(costs.VerifyFactor(101), 1.3, 0.05);
  EXPECT_EQ(costs.VerifyFactor(65), costs.VerifyFactor(128));
  EXPECT_EQ(costs.VerifyFactor(64), 1.0) << "other numbers of rows are not touched";
  EXPECT_NEAR(costs.Seconds(ModelIndex::kTarget, 101), 2 * 2.0, 0.2);  // the price itself stays
}

TEST(CostTable, LearnsInAFewPassesWhatItDoesNotKnowAndHoldsWhatItKnows) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {101, 2.0}};
  costs.Set(ModelIndex::kTarget, points);
  for (int i = 0; i < 12; ++i) costs.ObserveVerify(101, 2.0 * 0.6);
  EXPECT_NEAR(costs.VerifyFactor(101), 0.6, 0.08);
  for (int i = 0; i < 1000; ++i) costs.ObserveVerify(101, 2.0 * 0.6);
  const double known = costs.VerifyFactor(101);
  for (int i = 0; i < 12; ++i) costs.ObserveVerify(101, 2.0);
  EXPECT_LT(costs.VerifyFactor(101), 1.06 * known);
  for (int i = 0; i < 20000; ++i) costs.Observe(ModelIndex::kTarget, 1, 1.0);
  for (int i = 0; i < 12; ++i) costs.ObserveVerify(101, 2.0);
  EXPECT_GT(costs.VerifyFactor(101), 0.85) << "long not verified: trusted less";
}

TEST(CostTable, PaddedPassesCostWhatTheNextPointCosts) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {8, 2.0}, {16, 4.0}};
  costs.Set(ModelIndex::kTarget, points, CostTable::Between::kNext);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 1), 1.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 2), 2.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 8), 2.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 9), 4.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(ModelIndex::kTarget, 24), 6.0);
}

TEST(CostTable, ACatchUpCostsWhatWasMeasuredOrElseAsMuchAsMoreRows) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {2, 1.0}, {12, 6.0}};
  costs.Set(ModelIndex::kTarget, points);
  EXPECT_DOUBLE_EQ(costs.CatchUpSeconds(100), 0.0);
  costs.Set(ModelIndex::kDraft, points);
  EXPECT_DOUBLE_EQ(costs.CatchUpSeconds(100), 50.0);
  costs.Set(ModelIndex::kDraft, std::span(points).first(1));
  EXPECT_DOUBLE_EQ(costs.CatchUpSeconds(100), 100.0) << "nothing tells rows from passes";
  costs.SetCatchUp(0.1);
  EXPECT_DOUBLE_EQ(costs.CatchUpSeconds(100), 10.0);
  for (int i = 0; i < 300; ++i) costs.Observe(ModelIndex::kDraft, 1, 2.0);
  EXPECT_NEAR(costs.CatchUpSeconds(100), 20.0, 0.2);
}

TEST(CostTable, PassesThatVerifyHaveTheirOwnPriceFromTheStart) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {101, 2.0}};
  costs.Set(ModelIndex::kTarget, points);
  costs.SetVerify(101, 1.0);
  costs.SetVerify(101, 2.0);
  EXPECT_DOUBLE_EQ(costs.VerifyFactor(101), 0.75);
  EXPECT_DOUBLE_EQ(costs.VerifyFactor(64), 1.0);
  costs.SetVerify(64, 0.0);
  EXPECT_DOUBLE_EQ(costs.VerifyFactor(64), 1.0) << "not measured";
}

TEST(CostTable, AFactorThatLooksExpensiveReturnsToTheStartsWhileNothingVerifies) {
  CostTable costs;
  const CostTable::Point points[] = {{1, 1.0}, {101, 2.0}};
  costs.Set(ModelIndex::kTarget, points);
  costs.SetVerify(101, 1.6);
  for (int i = 0; i < 100; ++i) costs.ObserveVerify(101, 3.0);
  EXPECT_GT(costs.VerifyFactor(101), 1.1);
  for (int i = 0; i < 40000; ++i) costs.Observe(ModelIndex::kTarget, 1, 1.0);
  EXPECT_NEAR(costs.VerifyFactor(101), 0.8, 0.01);
}

TEST(CostTable, APlainPassLeavesThePriceOfVerifyingAsItWasFound) {
  CostTable costs = MemoryBoundCosts();
  const auto verify_seconds = [&](int32_t rows) {
    return costs.Seconds(ModelIndex::kTarget, rows) * costs.VerifyFactor(rows);
  };
  for (int i = 0; i < 300; ++i) costs.ObserveVerify(101, 2.6);
  const double known = verify_seconds(101);
  const double unknown = verify_seconds(1001);
  for (int i = 0; i < 20; ++i) costs.Observe(ModelIndex::kTarget, 1, 0.7);
  EXPECT_LT(costs.Seconds(ModelIndex::kTarget, 1), 0.8);
  EXPECT_NEAR(verify_seconds(101), known, 0.02 * known);
  EXPECT_NEAR(verify_seconds(1001), 0.7 * unknown, 0.1 * unknown) << "it goes with the plain price";
}

}  // namespace
}  // namespace tandem
