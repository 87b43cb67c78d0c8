#include "model/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/testing/configs.h"

namespace tandem {
namespace {

TEST(Spec, RoundTripsThroughJson) {
  ModelSpec spec = MustParse(kLlama32);
  const auto again = SpecFromJson(SpecToJson(spec));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, spec);
  spec =
      MustParse(Small(R"("rope_scaling": {"type": "dynamic", "factor": 2.5}, "mlp_bias": true)"));
  EXPECT_EQ(*SpecFromJson(SpecToJson(spec)), spec);
  spec.layers[1].mlp.intermediate_size = 96;
  spec.layers[1].attention.rope.theta = 500.0;
  spec.layers[1].attention.num_kv_heads = 1;
  spec.layers[1].attention.chunk = 64;
  spec.layers[1].attention.sinks = true;
  spec.layers[1].attention.head_norm = HeadNorm::kUnweighted;
  spec.layers[1].attention.growth = {
      .kind = QueryGrowth::Kind::kSteps, .length = 40, .factor = 0.5};
  spec.cache_scales = DType::kI8;
  spec.quantization = {.element = QuantScheme::Element::kInt4,
                       .block_rows = 1,
                       .block_columns = 64,
                       .zero_points = true,
                       .input_factors = true,
                       .input_order = true};
  spec.exceptions = {{WeightRole::kDown, 1, {}},
                     {WeightRole::kHead, 0, Fp8Scheme(QuantScheme::Inputs::kStatic)}};
  EXPECT_EQ(*SpecFromJson(SpecToJson(spec)), spec);
}

TEST(Spec, RefusesQueriesThatGrowByNothing) {
  ModelSpec spec = MustParse(Small(""));
  spec.layers[1].attention.growth = {.kind = QueryGrowth::Kind::kLogN, .length = 1};
  EXPECT_EQ(ValidateSpec(spec).message(),
            "layer 1: query_growth.length is 1; it must be between 2 and 268435456");
  spec = MustParse(Small(""));
  spec.layers[0].attention.window = spec.layers[0].attention.chunk = 8;
  EXPECT_EQ(ValidateSpec(spec).message(), "window and chunk are both given");
}

TEST(Spec, RefusesAPrefixWithoutItsTokens) {
  ModelSpec spec = MustParse(Small(""));
  spec.prefix.start_id = 1;
  EXPECT_EQ(ValidateSpec(spec).message(), "prefix.mask_ids is empty");
  spec.prefix = {};
  spec.second_position_rows = kMaxPositions;
  EXPECT_EQ(ValidateSpec(spec).message(),
            "prefix: second positions are of models with prefix masks alone");
}

// A layer of experts with everything that a description may say, beside a plain one.
ModelSpec WithExperts() {
  ModelSpec spec = MustParse(Small(""));
  LayerSpec& layer = spec.layers[1];
  layer.mlp.intermediate_size = 0;
  layer.moe = {.num_experts = 8,
               .expert = {.intermediate_size = 24,
                          .activation = ops::Activation::kClampedSwiglu,
                          .bias = true},
               .limit = 6.5,
               .routing = {.function = ops::RoutingRule::Function::kSigmoid,
                           .chosen_first = true,
                           .experts_per_token = 3,
                           .num_groups = 4,
                           .chosen_groups = 2,
                           .group_value = ops::RoutingRule::GroupValue::kTwoLargest,
                           .others_count_zero = true,
                           .renormalise = true,
                           .scale = 2.5f},
               .router_bias = true,
               .correction = true,
               .shared_gate = true,
               .scales_inputs = true};
  return spec;
}

TEST(Spec, ExpertsRoundTripThroughJson) {
  const ModelSpec spec = WithExperts();
  EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec).message();
  const auto again = SpecFromJson(SpecToJson(spec));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, spec);
}

TEST(Spec, RefusesExpertsThatCannotBeChosenNamingTheNumber) {
  using Change = void (*)(MoeSpec& moe);
  const std::pair<Change, const char*> cases[] = {
      {[](MoeSpec& moe) { moe.num_experts = 1025; }, "num_experts is 1025"},
      {[](MoeSpec& moe) { moe.num_experts = -1; }, "num_experts is -1"},
      {[](MoeSpec& moe) { moe.expert.intermediate_size = 0; }, "intermediate_size is 0"},
      {[](MoeSpec& moe) { moe.routing.experts_per_token = 0; }, "experts_per_token is 0"},
      {[](MoeSpec& moe) { moe.routing.experts_per_token = 9; }, "experts_per_token is 9"},
      {[](MoeSpec& moe) { moe.routing.num_groups = 3; },
       "must be a multiple of moe.routing.num_groups (3)"},
      {[](MoeSpec& moe) { moe.routing.chosen_groups = 5; }, "chosen_groups is 5"},
      {[](MoeSpec& moe) {
         moe.routing.others_count_zero = false;
         moe.routing.experts_per_token = 5;
       },
       "experts_per_token is 5"},
      {[](MoeSpec& moe) { moe.routing.scale = -1.0f; }, "moe.routing.scale is -1"},
      {[](MoeSpec& moe) { moe.limit = 0.0; }, "moe.limit is 0"}};
  for (const auto& [change, part] : cases) {
    ModelSpec spec = WithExperts();
    change(spec.layers[1].moe);
    EXPECT_NE(ValidateSpec(spec).message().find(part), std::string::npos)
        << ValidateSpec(spec).message();
  }
  ModelSpec spec = WithExperts();
  spec.layers[1].moe = {};
  EXPECT_FALSE(ValidateSpec(spec).ok()) << "a layer with neither MLP nor experts";
}

TEST(Spec, ACacheOfLatentsIsOfTheModelsTypeOrFp8) {
  ModelSpec spec = MustParse(DeepSeek());
  EXPECT_TRUE(CheckCacheScales(spec, DType::kF8E4M3).ok());
  const Status refused = CheckCacheScales(spec, DType::kI8);
  EXPECT_NE(refused.message().find("kv_cache_dtype int8: latents"), std::string::npos)
      << refused.message();
  spec.cache_scales = DType::kF8E4M3;
  EXPECT_EQ(ValidateSpec(spec).message(), "cache_scales: latents have no scales");
}

TEST(Spec, NamesTheLayerThatIsWrong) {
  ModelSpec spec = MustParse(Small(""));
  spec.layers[1].attention.rope.dim = 15;
  EXPECT_EQ(ValidateSpec(spec).message(),
            "layer 1: 15 of a head's 16 elements turn (rope.dim); it must be an even number up to "
            "head_dim");
  spec.layers.clear();
  EXPECT_NE(ValidateSpec(spec).message().find("num_layers is 0"), std::string::npos);
}

TEST(Spec, NamesAFieldAsItIsAsked) {
  ModelSpec spec = MustParse(Small(""));
  spec.layers[0].attention.num_kv_heads = 3;
  const FieldNames names = [](std::string_view field) { return "the " + std::string(field); };
  EXPECT_EQ(ValidateSpec(spec, names).message(),
            "the num_heads (4) must be a multiple of the num_kv_heads (3)");
  EXPECT_EQ(ValidateSpec(spec).message(), "num_heads (4) must be a multiple of num_kv_heads (3)");
}

TEST(Spec, RefusesASchemeThatIsNotComputedNamingWhat) {
  const auto refusal = [](const QuantScheme& scheme) {
    ModelSpec spec = MustParse(kLlama32);
    spec.quantization = scheme;
    return ValidateSpec(spec).message();
  };
  using Element = QuantScheme::Element;
  QuantScheme scheme = Fp8Scheme(QuantScheme::Inputs::kDynamic);
  EXPECT_EQ(refusal(scheme), "");
  scheme.block_rows = scheme.block_columns = 128;
  EXPECT_EQ(refusal(scheme), "");
  scheme.element = Element::kInt8;
  EXPECT_NE(refusal(scheme).find("128 rows"), std::string::npos) << refusal(scheme);
  scheme = {.element = Element::kInt4, .block_rows = 1, .block_columns = 127};
  EXPECT_NE(refusal(scheme).find("1 x 127"), std::string::npos) << refusal(scheme);
  scheme = {.element = Element::kInt4};
  EXPECT_NE(refusal(scheme).find("0 x 0"), std::string::npos) << refusal(scheme);
  scheme = Fp8Scheme(QuantScheme::Inputs::kStatic);
  scheme.zero_points = true;
  EXPECT_NE(refusal(scheme).find("zero points"), std::string::npos) << refusal(scheme);
  scheme = {.block_rows = 1};
  EXPECT_NE(refusal(scheme).find("not quantized"), std::string::npos) << refusal(scheme);
}

TEST(Spec, RefusesAnOddRowOfElementsThatShareBytes) {
  ModelSpec spec = MustParse(kLlama32);
  spec.quantization = {.element = QuantScheme::Element::kInt4, .block_rows = 1};
  EXPECT_TRUE(ValidateSpec(spec).ok());
  spec.layers[1].mlp.intermediate_size = 8191;
  EXPECT_NE(ValidateSpec(spec).message().find("\"mlp.down_proj\" has 8191"), std::string::npos)
      << ValidateSpec(spec).message();
}

TEST(Spec, RefusesAnExceptionOfNoProduct) {
  ModelSpec spec = MustParse(kLlama32);
  const auto refusal = [&spec](WeightRole role, int64_t layer) {
    spec.exceptions = {{role, layer, Fp8Scheme(QuantScheme::Inputs::kPlain)}};
    return ValidateSpec(spec).message();
  };
  EXPECT_EQ(refusal(WeightRole::kDown, spec.num_layers() - 1), "");
  EXPECT_EQ(refusal(WeightRole::kHead, 0), "");
  EXPECT_NE(refusal(WeightRole::kDown, spec.num_layers()).find("mlp.down_proj"), std::string::npos);
  EXPECT_NE(refusal(WeightRole::kHead, 1).find("lm_head"), std::string::npos);
  EXPECT_NE(refusal(WeightRole::kInputNorm, 0).find("input_layernorm"), std::string::npos);
}

TEST(Spec, RefusesBrokenJsonNamingTheField) {
  std::string json = SpecToJson(MustParse(kLlama32));
  json.replace(json.find("\"llama3\""), 8, "\"mrope\"");
  const auto spec = SpecFromJson(json);
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.status().message().find("layers[0].attention.rope.scaling: \"mrope\""),
            std::string::npos);
  EXPECT_FALSE(SpecFromJson("{}").ok());
  ModelSpec with_exception = MustParse(kLlama32);
  with_exception.exceptions = {{WeightRole::kDown, 1, Fp8Scheme(QuantScheme::Inputs::kPlain)}};
  const std::string whole = SpecToJson(with_exception);
  const size_t exceptions = whole.find("\"exceptions\"");
  for (const auto& [part, other, named] :
       {std::tuple("mlp.down_proj", "mlp.no_proj", "exceptions[0].weight: \"mlp.no_proj\" is not"),
        {"\"quantization\"", "\"quantisation\"", "exceptions[0].quantization: is missing"}}) {
    json = whole;
    json.replace(json.find(part, exceptions), std::string(part).size(), other);
    EXPECT_NE(SpecFromJson(json).status().message().find(named), std::string::npos)
        << SpecFromJson(json).status().message();
  }
}

}  // namespace
}  // namespace tandem
