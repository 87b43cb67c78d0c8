#include "apps/models/rank_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/models/session.h"

namespace tandem::apps {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class RankChoiceTest : public testing::Test {
 protected:
  RankChoiceTest() : source_(*OpenModel(*EmbeddedPairFolder() / "target")) {
    facts_.spec = &source_.spec();  // with eight heads
    facts_.places = 8;
  }

  RankChoice Choose() {
    Result<RankChoice> choice = ChooseRanks(options_, facts_);
    EXPECT_TRUE(choice.ok()) << choice.status().message();
    return choice.ok() ? *choice : RankChoice{};
  }

  const ModelSource source_;
  RankOptions options_;
  RankFacts facts_;
};

TEST_F(RankChoiceTest, AFolderThatSaysNothingRunsOnOneRank) {
  const RankChoice choice = Choose();
  EXPECT_EQ(choice.ranks, 1);
  EXPECT_THAT(choice.why, IsEmpty());
  EXPECT_THAT(choice.warning, IsEmpty());
}

TEST_F(RankChoiceTest, FilesForTwoRanksRunOnTwo) {
  facts_.built = {.tp_size = 2};
  const RankChoice choice = Choose();
  EXPECT_EQ(choice.ranks, 2);
  EXPECT_TRUE(choice.by_default);
  EXPECT_EQ(choice.why,
            "the model runs on 2 ranks, as its files were built (--tensor_parallel_size)");
}

TEST_F(RankChoiceTest, FilesForMoreRanksThanThereAreGpusOrCoresRunOnOne) {
  facts_.built = {.tp_size = 4};
  facts_.places = 2;
  RankChoice choice = Choose();
  EXPECT_EQ(choice.ranks, 1);
  EXPECT_EQ(choice.why,
            "the model runs on one rank instead of 4, as its files were built: there are 2 "
            "GPUs (--tensor_parallel_size)");
  facts_.on_cpu = true;
  facts_.places = 1;
  choice = Choose();
  EXPECT_EQ(choice.ranks, 1);
  EXPECT_THAT(choice.why, HasSubstr("there is 1 core "));
}

TEST_F(RankChoiceTest, ANumberThatIsGivenAlwaysCounts) {
  facts_.built = {.tp_size = 2};
  facts_.places = 1;
  for (const int32_t given : {1, 3, 4}) {  // what three cannot do is said when it is split
    options_.target = given;
    const RankChoice choice = Choose();
    EXPECT_EQ(choice.ranks, given);
    EXPECT_FALSE(choice.by_default);
    EXPECT_THAT(choice.why + choice.warning, IsEmpty());
  }
}

TEST_F(RankChoiceTest, WhatCannotBeSplitRunsOnOneRankAndSaysWhy) {
  facts_.built = {.tp_size = 3};
  const RankChoice choice = Choose();
  EXPECT_EQ(choice.ranks, 1);
  EXPECT_THAT(choice.why, IsEmpty());
  EXPECT_THAT(choice.warning, HasSubstr("not on 3 ranks, as its files were built: "));
  EXPECT_THAT(choice.warning, HasSubstr("attention heads (8)"));
}

TEST_F(RankChoiceTest, AListOfGpusHasARankForEach) {
  options_.devices = {"cuda:1", "cuda:2"};
  facts_.built = {.tp_size = 4};
  facts_.places = 1;  // from the first on; the GPUs themselves say that they are not there
  const RankChoice choice = Choose();
  EXPECT_EQ(choice.ranks, 2);
  EXPECT_FALSE(choice.by_default);
  options_.target = 2;
  EXPECT_EQ(Choose().ranks, 2);
  options_.target = 4;
  EXPECT_THAT(ChooseRanks(options_, facts_).status().message(), HasSubstr("names 2 devices"));
}

TEST_F(RankChoiceTest, AListOfCpuRanksStaysWithinTheCores) {
  options_.devices = {"cpu", "cpu", "cpu", "cpu"};
  facts_.on_cpu = true;
  EXPECT_EQ(Choose().ranks, 4);
  facts_.places = 2;
  EXPECT_EQ(Choose().ranks, 2);
  facts_.places = 3;  // does not divide the heads
  const RankChoice choice = Choose();
  EXPECT_EQ(choice.ranks, 1);
  EXPECT_THAT(choice.warning, HasSubstr("one for each device"));
}

TEST_F(RankChoiceTest, AWorldIsOnlyForModelsThatSayNothing) {
  options_.world_size = 4;
  EXPECT_EQ(Choose().ranks, 4);
  EXPECT_THAT(Choose().warning, IsEmpty());
  facts_.built = {.tp_size = 2};
  EXPECT_EQ(Choose().ranks, 2);
  EXPECT_EQ(Choose().warning, "--world_size 4: the model runs on 2 ranks");
  facts_.built = {.tp_size = 2, .pp_size = 2};
  EXPECT_THAT(Choose().warning, IsEmpty());
  options_.target = 1;
  facts_.built = {};
  EXPECT_EQ(Choose().warning, "--world_size 4: the model runs on one rank");
}

TEST_F(RankChoiceTest, AListNamesTheDevicesOfAllStages) {
  options_.stages = 2;
  options_.devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
  EXPECT_EQ(Choose().ranks, 2);
  EXPECT_EQ(
      Choose().why,
      "each stage of the model runs on 2 ranks, one for each device (--tensor_parallel_size)");
  options_.devices.resize(2);
  EXPECT_EQ(Choose().ranks, 1);
  options_.devices.resize(3, "cuda:2");
  EXPECT_THAT(ChooseRanks(options_, facts_).status().message(),
              HasSubstr("--pipeline_parallel_size 2: --device names 3 devices"));
  options_.devices = {"cuda:0", "cuda:1"};
  options_.target = 2;
  EXPECT_THAT(ChooseRanks(options_, facts_).status().message(), HasSubstr("names 2 devices"));
}

TEST_F(RankChoiceTest, AListOfOneOfSeveralProcessesNamesTheDevicesOfItsRanks) {
  options_.target = 3;
  options_.stages = 2;
  options_.here = 3;
  options_.devices = {"cuda:0", "cuda:1", "cuda:2"};
  EXPECT_EQ(Choose().ranks, 3);
  options_.devices.resize(2);
  EXPECT_THAT(ChooseRanks(options_, facts_).status().message(), HasSubstr("names 2 devices"));
}

TEST_F(RankChoiceTest, AWorldIsOfAllStages) {
  options_.stages = 2;
  options_.world_size = 4;
  EXPECT_EQ(Choose().ranks, 2);
  EXPECT_THAT(Choose().warning, IsEmpty());
  facts_.places = 3;
  EXPECT_EQ(Choose().ranks, 1);
}

}  // namespace
}  // namespace tandem::apps
