#include "apps/models/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::apps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

BackendOptions On(const std::string& device) {
  BackendOptions options;
  options.device = device;
  return options;
}

// A target on `target` GPUs from the first of `devices` on, or on those that are listed.
RankOptions Ranks(int32_t target, std::vector<std::string> devices,
                  std::vector<std::string> draft_devices) {
  RankOptions ranks;
  ranks.target = target;
  ranks.devices = std::move(devices);
  ranks.draft_devices = std::move(draft_devices);
  return ranks;
}

Result<RankOptions> Placed(RankOptions ranks) {
  TANDEM_RETURN_IF_ERROR(PlaceDraft(On(ranks.devices.front()), ranks));
  return ranks;
}

// Of four layers without MLPs.
ModelSpec OfAttention() {
  ModelSpec spec;
  spec.vocab_size = 8;
  spec.hidden_size = 32;
  spec.layers.resize(4);
  for (LayerSpec& layer : spec.layers) {
    layer.attention.num_heads = layer.attention.num_kv_heads = 4;
    layer.attention.head_dim = 8;
  }
  return spec;
}

// Of each rank whether it has layers of the target and of the draft.
std::vector<std::string> Layout(const RankOptions& ranks) {
  ModelSpec spec = OfAttention();
  for (LayerSpec& layer : spec.layers) layer.mlp.intermediate_size = 64;
  const auto target = TargetParts(spec, ranks).value(), draft = DraftParts(spec, ranks).value();
  std::vector<std::string> layout;
  for (size_t rank = 0; rank < target.size(); ++rank) {
    const auto text = [](const ModelSpec& part) {
      return part.num_layers() == 0
                 ? std::string("none")
                 : std::to_string(part.num_layers()) + "/" + std::to_string(part.place.ranks);
    };
    layout.push_back(text(target[rank]) + " " + text(draft[rank]));
  }
  return layout;
}

TEST(RanksTest, ADraftIsBesideTheTargetUnlessADeviceIsNamed) {
  EXPECT_THAT(Layout(Placed(Ranks(2, {"cuda:0"}, {})).value()), ElementsAre("4/2 4/2", "4/2 4/2"));
  // All of the target's GPUs are where it is anyway.
  EXPECT_THAT(Layout(Placed(Ranks(2, {"cuda:1"}, {"cuda:2", "cuda:1"})).value()),
              ElementsAre("4/2 4/2", "4/2 4/2"));
  EXPECT_THAT(Layout(Placed(Ranks(1, {"cuda:0"}, {"cuda:0"})).value()), ElementsAre("4/1 4/1"));
}

TEST(RanksTest, ADraftHasItsOwnGpus) {
  EXPECT_THAT(Layout(Placed(Ranks(1, {"cuda"}, {"cuda:1"})).value()),
              ElementsAre("4/1 none", "none 4/1"));
  EXPECT_THAT(Layout(Placed(Ranks(2, {"cuda:1", "cuda:2"}, {"cuda:0"})).value()),
              ElementsAre("4/2 none", "4/2 none", "none 4/1"));
  RankOptions stages = Ranks(1, {"cuda:0"}, {"cuda:4", "cuda:5"});
  stages.stages = 2;
  EXPECT_THAT(Layout(Placed(stages).value()),
              ElementsAre("2/1 none", "2/1 none", "none 4/2", "none 4/2"));
}

TEST(RanksTest, ADraftHasOneOfTheTargetsGpus) {
  EXPECT_THAT(Layout(Placed(Ranks(2, {"cuda:1"}, {"cuda:2"})).value()),
              ElementsAre("4/2 none", "4/2 4/1"));
}

TEST(RanksTest, OnACpuADraftHasARankOfItsOwn) {
  const RankOptions ranks = Placed(Ranks(2, {"cpu"}, {"cpu"})).value();
  EXPECT_THAT(Layout(ranks), ElementsAre("4/2 none", "4/2 none", "none 4/1"));
  EXPECT_EQ(ranks.count(), 3);
  EXPECT_EQ(ranks.StagesOf().apart, 1);
  BackendOptions cpu = On("cpu");
  cpu.cpu.num_threads = 6;
  EXPECT_EQ(BackendOfRank(cpu, ranks, 2).cpu.first_core, 4);
}

TEST(RanksTest, ADeviceThatADraftCanNotHaveIsRefused) {
  const auto why = [](const RankOptions& ranks) { return Placed(ranks).status().message(); };
  EXPECT_THAT(why(Ranks(2, {"cuda:1"}, {"cuda:0", "cuda:1"})),
              testing::AllOf(HasSubstr("--draft_device cuda:0,cuda:1"),
                             HasSubstr("the target is on GPUs 1,2")));
  EXPECT_THAT(why(Ranks(1, {"cuda:0"}, {"cpu"})), HasSubstr("cuda:N"));
  EXPECT_THAT(why(Ranks(1, {"cpu"}, {"cuda:0"})), HasSubstr("so the draft is too: cpu"));
  RankOptions ranks = Ranks(2, {"cpu"}, {"cpu"});
  ranks.draft = 2;
  const Status other = DraftParts(ModelSpec(), Placed(ranks).value()).status();
  EXPECT_THAT(other.message(), HasSubstr("--draft_device names 1 device, which"));
}

// Five experts in each layer, whose 30 neurons no four ranks divide.
ModelSpec WithExperts() {
  ModelSpec spec = OfAttention();
  for (LayerSpec& layer : spec.layers) {
    layer.moe.num_experts = 5;
    layer.moe.expert.intermediate_size = 30;
    layer.moe.routing.experts_per_token = 2;
  }
  return spec;
}

TEST(RanksTest, ExpertsThatCannotBeSplitAreDividedWhole) {
  RankOptions ranks;
  ranks.target = 2;
  EXPECT_EQ(TargetParts(WithExperts(), ranks).value()[1].layers[0].moe.expert.intermediate_size,
            15);
  ranks.target = 4;
  const std::vector<ModelSpec> parts = TargetParts(WithExperts(), ranks).value();
  int64_t experts = 0;
  for (const ModelSpec& part : parts) {
    const MoeSpec& moe = part.layers[2].moe;
    EXPECT_EQ(moe.routing.first, experts);
    EXPECT_EQ(moe.expert.intermediate_size, 30);
    experts += moe.experts_here();
  }
  EXPECT_EQ(experts, 5);
}

TEST(RanksTest, HowExpertsAreDividedCanBeSaid) {
  RankOptions ranks;
  ranks.target = ranks.experts = 2;
  EXPECT_EQ(TargetParts(WithExperts(), ranks).value()[0].layers[0].moe.experts_here(), 2);
  ranks.experts = 3;
  EXPECT_THAT(TargetParts(WithExperts(), ranks).status().message(),
              HasSubstr("--expert_parallel_size 3: it must be 1 or the ranks of a stage"));
  ranks.target = 4;
  ranks.experts = 1;
  EXPECT_THAT(TargetParts(WithExperts(), ranks).status().message(),
              HasSubstr("--tensor_parallel_size: tp_size is 4"));
}

}  // namespace
}  // namespace tandem::apps
