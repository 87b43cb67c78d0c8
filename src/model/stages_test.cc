// A model split over stages: what each has, and where its weights are read.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "model/dummy_weights.h"
#include "model/kv_pool.h"
#include "model/prompt_rules.h"
#include "model/rank_layout.h"
#include "model/rank_source.h"

namespace tandem {
namespace {

// Five layers, which their sizes tell apart.
ModelSpec Spec() {
  ModelSpec spec;
  spec.family = "llama";
  spec.architecture = "LlamaForCausalLM";
  spec.dtype = DType::kBF16;
  spec.vocab_size = 99;
  spec.hidden_size = 48;
  spec.max_positions = 64;
  for (int64_t i = 0; i < 5; ++i) {
    LayerSpec& layer = spec.layers.emplace_back();
    layer.attention.num_heads = 6;
    layer.attention.num_kv_heads = 2;
    layer.attention.head_dim = 16;
    layer.attention.qkv_bias = layer.attention.out_bias = true;
    layer.mlp.intermediate_size = 72 + 24 * i;
  }
  return spec;
}

ModelSpec StageOf(const ModelSpec& whole, int64_t stage, int64_t stages) {
  return RankSpec(whole, {.stage = stage, .stages = stages}).value();
}

bool Has(const ModelSpec& spec, WeightRole role) { return !WeightParts(spec, role, 0).empty(); }

TEST(Stages, HaveTheLayersOfTheModelInTheirOrder) {
  const ModelSpec whole = Spec();
  for (int64_t stages = 1; stages <= 5; ++stages) {
    std::vector<LayerSpec> layers;
    for (int64_t stage = 0; stage < stages; ++stage) {
      const ModelSpec part = StageOf(whole, stage, stages);
      EXPECT_EQ(part.num_layers(), 5 / stages + (stage < 5 % stages ? 1 : 0));
      EXPECT_EQ(part.layers.size() + part.other_layers.size(), 5u);
      layers.insert(layers.end(), part.layers.begin(), part.layers.end());
      EXPECT_TRUE(ValidateSpec(part).ok());
    }
    EXPECT_EQ(layers, whole.layers) << stages;
  }
  const auto refused = RankSpec(whole, {.stage = 0, .stages = 6});
  EXPECT_EQ(refused.status().message(),
            "pp_size is 6; it must be between 1 and the number of layers (5)");
}

TEST(Stages, OnlyTheFirstEmbedsAndOnlyTheLastHasTheHead) {
  ModelSpec whole = Spec();
  whole.position_rows = 64;
  whole.embedding_norm = true;
  int64_t bytes = 0;
  for (int64_t stage = 0; stage < 3; ++stage) {
    const ModelSpec part = StageOf(whole, stage, 3);
    for (const WeightRole role :
         {WeightRole::kEmbedding, WeightRole::kPositions, WeightRole::kEmbeddingNorm}) {
      EXPECT_EQ(Has(part, role), stage == 0);
    }
    for (const WeightRole role : {WeightRole::kFinalNorm, WeightRole::kHead}) {
      EXPECT_EQ(Has(part, role), stage == 2);
    }
    bytes += StoredBytes(part);
  }
  EXPECT_EQ(bytes, StoredBytes(whole));
  // A head that is tied to the embedding is on its own.
  whole.tied_head = true;
  EXPECT_TRUE(Has(StageOf(whole, 2, 3), WeightRole::kHead));
  EXPECT_FALSE(StageOf(whole, 0, 3).tied_head);
  EXPECT_FALSE(Has(StageOf(whole, 0, 3), WeightRole::kHead));
}

TEST(Stages, AFileHasWhatItsStageComputes) {
  const ModelSpec whole = Spec();
  const Sharding sharding{.pp_size = 3};
  std::set<WeightId> all;
  for (int64_t stage = 0; stage < 3; ++stage) {
    for (WeightId id : StoredWeights(StageOf(whole, stage, 3))) {
      if (RowOf(id.role).per_layer) id.layer += FirstLayer(whole, sharding, stage);
      EXPECT_EQ(tandem::StageOf(whole, sharding, id), stage);
      EXPECT_TRUE(all.insert(id).second);
    }
  }
  EXPECT_EQ(all.size(), StoredWeights(whole).size());
}

TEST(Stages, ExceptionsFollowTheirLayers) {
  ModelSpec whole = Spec();
  const QuantScheme int8{.element = QuantScheme::Element::kInt8, .block_rows = 1};
  whole.exceptions = {
      {WeightRole::kDown, 0, int8}, {WeightRole::kQuery, 3, int8}, {WeightRole::kHead, 0, int8}};
  const ModelSpec first = StageOf(whole, 0, 2), last = StageOf(whole, 1, 2);
  EXPECT_EQ(SchemeOf(first, WeightRole::kDown, 0), int8);
  EXPECT_TRUE(SchemeOf(last, WeightRole::kDown, 0).is_plain());
  EXPECT_EQ(SchemeOf(last, WeightRole::kQuery, 0), int8);
  EXPECT_TRUE(SchemeOf(first, WeightRole::kQuery, 0).is_plain());
  EXPECT_EQ(SchemeOf(last, WeightRole::kHead, 0), int8);
  EXPECT_TRUE(ValidateSpec(first).ok());
  EXPECT_TRUE(ValidateSpec(last).ok());
}

TEST(Stages, WhatABatchBringsAndHowLongBlocksAreKeptIsTheSameForAll) {
  ModelSpec whole = Spec();
  whole.layers[1].attention.window = 20;
  whole.layers[4].attention.rope.halves = true;
  whole.layers[4].attention.rope.scaling = {.kind = RopeScaling::Kind::kDynamic,
                                            .original_max_positions = 32};
  whole.layers[0].attention.rope.scaling = {.kind = RopeScaling::Kind::kNtkSteps,
                                            .original_max_positions = 16};
  for (int64_t stage = 0; stage < 5; ++stage) {
    const ModelSpec part = StageOf(whole, stage, 5);
    EXPECT_EQ(LongestWindow(part), 20);
    EXPECT_EQ(RowFormOf(part), RowFormOf(whole));
    EXPECT_EQ(PromptRulesOf(part, 64).trained, 16);
    EXPECT_EQ(part.DefaultPositions(), 32);
    EXPECT_EQ(part.KvBytesPerToken(DType::kBF16), whole.KvBytesPerToken(DType::kBF16) / 5);
  }
}

std::vector<std::byte> BytesOf(WeightSource& source, const WeightId& id) {
  const auto tensor = source.Get(id);
  EXPECT_TRUE(tensor.ok()) << tensor.status().message();
  std::vector<std::byte> bytes(static_cast<size_t>(tensor->NumBytes()));
  std::memcpy(bytes.data(), tensor->data, bytes.size());
  source.Release();
  return bytes;
}

TEST(Stages, ReadTheWeightsOfTheirLayersAloneAndOfSeveralRanks) {
  ModelSpec spec = Spec();
  spec.cache_scales = DType::kI8;
  const auto whole = DummySource::FromSpec(spec, {.seed = 3, .num_threads = 1}).value();
  for (const int64_t ranks : {1, 2}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      RankSource all_layers(*whole, RankSpec(spec, {rank, ranks}).value());
      for (int64_t stage = 0; stage < 3; ++stage) {
        const ModelSpec part = RankSpec(spec, {rank, ranks, stage, 3}).value();
        RankSource source(*whole, part);
        EXPECT_EQ(source.spec(), part);
        const int64_t first = FirstLayer(spec, {.pp_size = 3}, stage);
        for (const WeightId& id : StoredWeights(part)) {
          WeightId of_whole = id;
          if (RowOf(id.role).per_layer) of_whole.layer += first;
          EXPECT_EQ(source.Get(id)->shape, WeightShape(part, id)) << RowOf(id.role).hf_name;
          EXPECT_EQ(BytesOf(source, id), BytesOf(all_layers, of_whole)) << RowOf(id.role).hf_name;
        }
      }
    }
  }
}

// A rank's dummy weights are made where they lie.
TEST(Stages, TakeTheirLayersOfASourceThatHasTheRanksShare) {
  const ModelSpec spec = Spec();
  const DummyOptions options{.seed = 3, .num_threads = 1};
  const ModelSpec share = RankSpec(spec, {1, 2}).value();
  const auto all_layers = DummySource::FromSpec(share, options).value();
  const ModelSpec part = RankSpec(spec, {1, 2, 1, 2}).value();
  RankSource source(DummySource::FromSpec(share, options).value(), part);
  for (const WeightId& id : StoredWeights(part)) {
    WeightId of_share = id;
    if (RowOf(id.role).per_layer) of_share.layer += 3;
    EXPECT_EQ(source.Get(id)->shape, WeightShape(part, id)) << RowOf(id.role).hf_name;
    EXPECT_EQ(BytesOf(source, id), BytesOf(*all_layers, of_share)) << RowOf(id.role).hf_name;
  }
}

TEST(Stages, ARankWithoutOneHasNoLayersAndNoWeights) {
  const ModelSpec whole = Spec();
  const RankPlace nothing{.stage = RankPlace::kNoStage, .apart = true, .first = 1};
  const ModelSpec part = RankSpec(whole, nothing).value();
  EXPECT_EQ(part.num_layers(), 0);
  EXPECT_EQ(part.other_layers.size(), 5u);
  EXPECT_EQ(StoredBytes(part), 0);
  EXPECT_EQ(part.KvBytesPerToken(DType::kBF16), 0);
  EXPECT_EQ(part.vocab_size, whole.vocab_size);
  EXPECT_TRUE(ValidateSpec(part).ok());
}

TEST(Stages, ADraftOfItsOwnRanksIsWholeThere) {
  ModelSpec whole = Spec();
  whole.tied_head = true;
  const RankLayout layout{.ranks = 2, .draft_first = 2};
  ASSERT_EQ(layout.count(), 3);
  const ModelSpec draft = RankSpec(whole, layout.DraftAt(2)).value();
  EXPECT_EQ(draft.layers, whole.layers);
  EXPECT_TRUE(draft.tied_head);
  EXPECT_TRUE(draft.place.shares_logits());
  EXPECT_EQ(draft.place.first_with_logits(), 2);
  for (const int64_t rank : {0, 1}) {
    EXPECT_FALSE(layout.DraftAt(rank).has_layers());
    EXPECT_EQ(layout.TargetAt(rank).rank, rank);
  }
  EXPECT_FALSE(layout.TargetAt(2).has_layers());
  EXPECT_EQ(layout.StagesOf().apart, 1);
}

}  // namespace
}  // namespace tandem
