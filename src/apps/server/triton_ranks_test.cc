#include "apps/server/triton_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace tandem::apps {
namespace {

using serve::kserve::FolderModel;
using serve::kserve::FolderModels;
using serve::kserve::ModelKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

FolderModel Engine(const std::string& name, std::vector<int32_t> gpus,
                   std::vector<int32_t> participants) {
  FolderModel model;
  model.name = name;
  model.parameters.kind = ModelKind::kTensorrtLlm;
  model.parameters.gpu_device_ids = std::move(gpus);
  model.parameters.participant_ids = std::move(participants);
  return model;
}

// Draft on GPU 0, target on GPUs 1 and 2.
FolderModels Pair() {
  FolderModels models;
  models["tensorrt_llm_draft"] = Engine("tensorrt_llm_draft", {0}, {1});
  models["tensorrt_llm"] = Engine("tensorrt_llm", {1, 2}, {2, 3});
  models["ensemble"].name = "ensemble";
  return models;
}

constexpr TritonLaunch kFour = {
    .world_size = 4, .is_orchestrated = true, .is_spawned_before = true};

TEST(TritonRanks, AWorldOfTheOrchestratorAndTheRanksOfBothModelsFits) {
  EXPECT_THAT(LaunchWarnings(kFour, Pair()), IsEmpty());
}

TEST(TritonRanks, AWorldOfAnotherSizeIsNamedWithTheSumThatItShouldBe) {
  TritonLaunch launch = kFour;
  launch.world_size = 5;
  EXPECT_THAT(LaunchWarnings(launch, Pair()),
              ElementsAre("--world_size 5: the models have 4 ranks (1 + 2 of tensorrt_llm + 1 of "
                          "tensorrt_llm_draft); each runs on those that its gpu_device_ids says"));
}

TEST(TritonRanks, ParticipantsAreAsManyAsGpusAndEachIsInTheWorldOnce) {
  FolderModels models = Pair();
  models["tensorrt_llm"].parameters.participant_ids = {1, 2, 9};
  EXPECT_THAT(
      LaunchWarnings(kFour, models),
      ElementsAre("tensorrt_llm: parameter participant_ids 1,2,9: gpu_device_ids names 2 GPUs, "
                  "which count",
                  "tensorrt_llm: parameter participant_ids 1,2,9: 9 is none of 1 to 3, as "
                  "--world_size 4 says",
                  "tensorrt_llm_draft: parameter participant_ids 1: 1 is named twice"));
}

TEST(TritonRanks, ModelsThatSayNothingFitAnyWorld) {
  FolderModels models = Pair();
  models["tensorrt_llm"] = Engine("tensorrt_llm", {}, {});
  EXPECT_THAT(LaunchWarnings(kFour, models), IsEmpty());
}

TEST(TritonRanks, RanksThatAreStartedWhenNeededAreNoneOfTheWorld) {
  const TritonLaunch launch = {.world_size = 4, .is_orchestrated = true};
  EXPECT_THAT(LaunchWarnings(launch, Pair()), ElementsAre(HasSubstr("it is 1")));
  EXPECT_THAT(LaunchWarnings({.is_orchestrated = true}, Pair()), IsEmpty());
  // Of a model's own ranks the model is asked when it is loaded.
  EXPECT_THAT(LaunchWarnings({.world_size = 4}, Pair()), IsEmpty());
}

TEST(TritonRanks, GpusBecomeDevicesInTheirOrder) {
  EXPECT_EQ(*GpuList({2, 1}, 4), "cuda:2,cuda:1");
  EXPECT_EQ(*GpuList({0}, 1), "cuda:0");
  EXPECT_EQ(CpuList(1), "cpu");
  EXPECT_EQ(CpuList(3), "cpu,cpu,cpu");
}

TEST(TritonRanks, GpusThatAreNotThereAreNamedWithTheParameter) {
  const Status missing = GpuList({1, 2}, 2).status();
  EXPECT_EQ(missing.code(), Code::kInvalidArgument);
  EXPECT_EQ(missing.field(), "gpu_device_ids");
  EXPECT_EQ(missing.message(),
            "parameter gpu_device_ids is 1,2: there is no GPU 2 on this machine, which has 0 to 1");
  EXPECT_THAT(GpuList({1}, 1).status().message(), HasSubstr("has GPU 0 only"));
  EXPECT_THAT(GpuList({1, 1}, 2).status().message(), HasSubstr("twice"));
}

TEST(TritonRanks, ADraftRunsOnItsOwnGpusOrBesideItsTarget) {
  const FolderModel target = Engine("tensorrt_llm", {1, 2}, {});
  const auto list = [&](std::vector<int32_t> gpus) {
    return DraftGpuList(target, Engine("draft", std::move(gpus), {}), 4);
  };
  EXPECT_EQ(*list({0}), "cuda:0");
  EXPECT_EQ(*list({0, 3}), "cuda:0,cuda:3");
  EXPECT_EQ(*list({2}), "cuda:2");
  EXPECT_EQ(*list({2, 1}), "");
  EXPECT_EQ(*list({}), "");
  EXPECT_EQ(*DraftGpuList(Engine("target", {}, {}), Engine("draft", {0}, {}), 4), "");
}

TEST(TritonRanks, GpusThatADraftCanNotHaveAreNamedWithTheModel) {
  const FolderModel target = Engine("tensorrt_llm", {1, 2}, {});
  EXPECT_THAT(DraftGpuList(target, Engine("draft", {0, 1}, {}), 4).status().message(),
              testing::AllOf(HasSubstr("draft: parameter gpu_device_ids is 0,1"),
                             HasSubstr("that of tensorrt_llm 1,2")));
  EXPECT_THAT(DraftGpuList(target, Engine("draft", {7}, {}), 4).status().message(),
              HasSubstr("draft: parameter gpu_device_ids is 7: there is no GPU 7"));
}

}  // namespace
}  // namespace tandem::apps
