#include "model/weight_roles.h"

#include <gtest/gtest.h>

#include <set>

#include "model/sharding.h"
#include "model/tensor_source.h"

namespace tandem {
namespace {

ModelSpec Spec() {
  ModelSpec spec;
  spec.family = "llama";
  spec.dtype = DType::kBF16;
  spec.vocab_size = 99;
  spec.hidden_size = 48;
  LayerSpec layer;
  layer.attention.num_heads = 6;
  layer.attention.num_kv_heads = 2;
  layer.attention.head_dim = 16;
  layer.mlp.intermediate_size = 72;
  spec.layers.assign(2, layer);
  spec.max_positions = 64;
  return spec;
}

TEST(WeightRoles, ProductsOfOnePackShareTheirInputs) {
  const ModelSpec spec = Spec();
  for (const WeightRow& row : WeightRows()) {
    if (row.columns == nullptr) {
      EXPECT_TRUE(row.input == InputGroup::kNone && !row.absorber) << row.hf_name;
      EXPECT_TRUE(row.pack == WeightPack::kNone && !row.quantizable) << row.hf_name;
    }
    for (const WeightRole role : RolesOf(spec, row.pack, 0)) {
      if (row.pack == WeightPack::kNone) continue;
      EXPECT_EQ(RowOf(role).input, row.input) << row.hf_name;
      EXPECT_EQ(RowOf(role).columns(spec, 0), row.columns(spec, 0)) << row.hf_name;
      EXPECT_EQ(RowOf(role).quantizable, row.quantizable) << row.hf_name;
    }
  }
}

TEST(WeightRoles, EveryExpertHasItsWeightsAndAStepReadsThoseThatARowChooses) {
  ModelSpec spec = Spec();
  EXPECT_EQ(StoredBytes(spec), 2 * NumParameters(spec));
  const int64_t dense_bytes = StepWeightBytes(spec), dense_parameters = NumParameters(spec);
  LayerSpec& layer = spec.layers[1];
  layer.mlp.intermediate_size = 0;
  layer.moe = {.num_experts = 5,
               .expert = {.intermediate_size = 20},
               .routing = {.experts_per_token = 2},
               .correction = true};
  std::set<std::string> names;
  for (const WeightId& id : StoredWeights(spec)) {
    EXPECT_TRUE(names.insert(StandardSource(spec, id).name).second);
  }
  EXPECT_TRUE(names.contains("model.layers.1.mlp.experts.4.down_proj.weight"));
  EXPECT_TRUE(names.contains("model.layers.1.mlp.gate.weight"));
  EXPECT_TRUE(names.contains("model.layers.1.mlp.gate.e_score_correction_bias"));
  EXPECT_FALSE(names.contains("model.layers.1.mlp.up_proj.weight"));
  EXPECT_EQ(WeightDType(spec, {WeightRole::kRouterCorrection, 1}), DType::kF32);
  const int64_t mlp = 3 * 72 * 48, expert = 3 * 20 * 48, router = 5 * 48;
  EXPECT_EQ(NumParameters(spec), dense_parameters - mlp + 5 * expert + router + 5);
  EXPECT_EQ(NumActiveParameters(spec), dense_parameters - mlp + 2 * expert + router + 5);
  EXPECT_EQ(StepWeightBytes(spec), dense_bytes + 2 * (2 * expert + router - mlp) + 4 * 5);
  // A router is no product that is quantized.
  spec.quantization = Fp8Scheme(QuantScheme::Inputs::kDynamic);
  EXPECT_TRUE(SchemeOf(spec, WeightRole::kRouter, 1).is_plain());
  EXPECT_FALSE(SchemeOf(spec, WeightRole::kExpertDown, 1).is_plain());
}

TEST(WeightRoles, EveryTensorIsListedOnceAndNamedOnce) {
  ModelSpec spec = Spec();
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qkv_bias = layer.attention.out_bias = true;
  }
  const auto ids = StoredWeights(spec);
  std::set<std::string> names;
  for (const WeightId& id : ids) names.insert(StandardSource(spec, id).name);
  EXPECT_EQ(names.size(), ids.size());
  EXPECT_EQ(ids.size(), 3u + 2u * (9u + 4u));
  EXPECT_EQ(ids.front(), (WeightId{WeightRole::kEmbedding}));
  EXPECT_EQ(ids.back(), (WeightId{WeightRole::kHead}));
  spec.tied_head = true;
  EXPECT_EQ(StoredWeights(spec).back(), (WeightId{WeightRole::kFinalNorm}));
  EXPECT_EQ(RolesOf(spec, WeightPack::kHead, 0), std::vector{WeightRole::kEmbedding});
}

TEST(WeightParts, EveryPartOfAQuantizedWeightIsListedOnceAndNamedOnce) {
  ModelSpec spec = Spec();
  spec.quantization = {.element = QuantScheme::Element::kInt4,
                       .block_rows = 1,
                       .block_columns = 8,
                       .zero_points = true,
                       .input_factors = true,
                       .input_order = true,
                       .inputs = QuantScheme::Inputs::kStatic};
  spec.cache_scales = DType::kI8;
  std::set<std::string> names;
  std::set<WeightPart> parts;
  const auto ids = StoredWeights(spec);
  for (const WeightId& id : ids) {
    names.insert(StandardSource(spec, id).name);
    parts.insert(id.part);
    EXPECT_EQ(IsScale(id.part), WeightDType(spec, id) == DType::kF32) << names.size();
  }
  EXPECT_EQ(names.size(), ids.size());
  // Five parts more of seven products, and cache scales of keys and of values.
  EXPECT_EQ(ids.size(), 3u + 2u * (9u + 7u * 5u + 2u));
  EXPECT_EQ(parts.size() + 1, WeightPartRows().size()) << "no biases";
  EXPECT_EQ(names.count("model.layers.1.self_attn.v_proj.v_scale"), 1u);
  EXPECT_EQ(WeightShape(spec, {WeightRole::kGate, 0}), (Shape{72, 24})) << "two in a byte";
  EXPECT_EQ(WeightShape(spec, {WeightRole::kGate, 0, WeightPart::kScale}), (Shape{72, 6}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kGate, 0, WeightPart::kZero}), (Shape{72, 6}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kGate, 0, WeightPart::kInputOrder}), (Shape{48}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kDown, 0, WeightPart::kInputFactors}), (Shape{72}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kGate, 0, WeightPart::kInputScale}), (Shape{1}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kValue, 0, WeightPart::kCacheScale}), (Shape{2}));
}

TEST(WeightParts, AnExceptionHasTheShapesOfItsOwnScheme) {
  ModelSpec spec = Spec();
  spec.quantization = Fp8Scheme(QuantScheme::Inputs::kStatic);
  spec.exceptions = {
      {WeightRole::kDown, 1, {}},
      {WeightRole::kHead, 0, {.element = QuantScheme::Element::kInt8, .block_rows = 1}}};
  EXPECT_EQ(WeightParts(spec, WeightRole::kDown, 0).size(), 3u);
  EXPECT_EQ(WeightParts(spec, WeightRole::kDown, 1), std::vector{WeightPart::kWeight});
  EXPECT_EQ(WeightDType(spec, {WeightRole::kDown, 1}), spec.dtype);
  EXPECT_EQ(WeightDType(spec, {WeightRole::kHead}), DType::kI8);
}

TEST(Sharding, PartsOfAllRanksMakeUpTheWhole) {
  const QuantScheme fp8 = Fp8Scheme(QuantScheme::Inputs::kStatic);
  const QuantScheme int4 = {.element = QuantScheme::Element::kInt4,
                            .block_rows = 1,
                            .block_columns = 4,
                            .zero_points = true,
                            .input_factors = true};
  for (const QuantScheme& scheme : {fp8, int4}) {
    ModelSpec spec = Spec();
    spec.quantization = scheme;
    spec.cache_scales = DType::kI8;
    for (const int64_t tp : {1, 2, 6}) {
      const Sharding sharding{.tp_size = tp, .parallel_embedding = true, .embedding_dim = 1};
      ASSERT_TRUE(CheckSharding(spec, sharding).ok()) << tp;
      for (const WeightId& id : StoredWeights(spec)) {
        const Split split = SplitOf(spec, sharding, id);
        if (split == Split::kNone) continue;
        const int dim = split == Split::kCols ? 1 : 0;
        const int64_t whole = WeightShape(spec, id)[dim];
        int64_t end = 0;
        for (int64_t rank = 0; rank < tp; ++rank) {
          const int64_t begin = PartBegin(spec, sharding, id, rank);
          EXPECT_LE(begin, end) << "a gap before rank " << rank;
          end = begin + PartShape(spec, sharding, id)[dim];
        }
        EXPECT_GE(end, whole);
      }
    }
  }
}

TEST(Sharding, NamesWhatTheRanksDoNotDivide) {
  struct Case {
    int64_t tp;
    void (*change)(ModelSpec&);
    const char* named;
  };
  const Case cases[] = {
      {4, [](ModelSpec&) {}, "attention heads (6)"},
      {3, [](ModelSpec&) {}, "key-value heads (2)"},
      {2, [](ModelSpec& spec) { spec.layers[1].mlp.intermediate_size = 71; },
       "intermediate size (71)"},
      {2, [](ModelSpec& spec) { spec.hidden_size = 49; }, "hidden size (49)"},
      {65, [](ModelSpec&) {}, "between 1 and 64"},
      {2, [](ModelSpec& spec) { spec.quantization = {QuantScheme::Element::kInt4, 1, 16}; },
       "groups of columns with one scale of (16)"},
      {2, [](ModelSpec& spec) { spec.quantization = {QuantScheme::Element::kFp8E4M3, 16, 16}; },
       "blocks of rows with one scale of (16)"},
      {2,
       [](ModelSpec& spec) {
         spec.quantization = {
             .element = QuantScheme::Element::kInt4, .block_rows = 1, .input_order = true};
       },
       "act-order"},
  };
  for (const Case& c : cases) {
    ModelSpec spec = Spec();
    c.change(spec);
    const Status status =
        CheckSharding(spec, {.tp_size = c.tp, .parallel_embedding = true, .embedding_dim = 1});
    ASSERT_FALSE(status.ok()) << c.named;
    EXPECT_NE(status.message().find(c.named), std::string::npos) << status.message();
  }
}

TEST(Sharding, ExpertsInActOrderAreDividedWholeWhereGroupsAreNot) {
  ModelSpec spec = Spec();
  spec.quantization = {.element = QuantScheme::Element::kInt4,
                       .block_rows = 1,
                       .block_columns = 16,
                       .input_order = true};
  LayerSpec& layer = spec.layers[1];
  layer.mlp.intermediate_size = 0;
  layer.moe = {
      .num_experts = 4, .expert = {.intermediate_size = 48}, .routing = {.experts_per_token = 2}};
  const Result<ModelSpec> refused = RankSpec(spec, {.ranks = 2});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("act-order"), std::string::npos);
  EXPECT_TRUE(RankSpec(spec, {.ranks = 2, .whole_experts = true}).ok());
  layer.moe.expert.intermediate_size = 64;
  const Result<ModelSpec> part = RankSpec(spec, {.ranks = 2});
  ASSERT_TRUE(part.ok()) << part.status().message();
  EXPECT_FALSE(SchemeOf(*part, WeightRole::kExpertDown, 1).is_plain());
  EXPECT_TRUE(SchemeOf(*part, WeightRole::kAttentionOut, 1).is_plain());
}

TEST(Sharding, AHeadInBlocksIsDividedOnce) {
  ModelSpec spec = Spec();
  spec.vocab_size = 32;
  spec.exceptions = {{WeightRole::kHead, 0, {QuantScheme::Element::kFp8E4M3, 16, 16}}};
  const Result<ModelSpec> part = RankSpec(spec, {.ranks = 2});
  EXPECT_TRUE(part.ok()) << part.status().message();
}

}  // namespace
}  // namespace tandem
