#include "quantize/layer_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/families.h"

namespace tandem {
namespace {

using testing::ElementsAre;

// One layer; three query heads for each of two key-value heads of 16.
ModelSpec Spec() {
  return SpecFromHfConfig(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 99,
      "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 1, "head_dim": 16,
      "num_attention_heads": 6, "num_key_value_heads": 2})")
      .value();
}

const LayerInput& Find(const std::vector<LayerInput>& inputs, const InputId& id) {
  const auto found = std::ranges::find(inputs, id, &LayerInput::id);
  EXPECT_NE(found, inputs.end());
  return *found;
}

std::optional<WeightRole> AbsorberOf(const ModelSpec& spec, const InputId& id) {
  return Find(InputsOf(spec, 0), id).absorber;
}

constexpr InputId kAttention{InputGroup::kAttention}, kAttentionOut{InputGroup::kAttentionOut},
    kMlp{InputGroup::kMlp}, kMlpOut{InputGroup::kMlpOut};

TEST(LayerInputs, OfALlamaAreTakenOverByWhatIsBefore) {
  const ModelSpec spec = Spec();
  const std::vector<LayerInput> inputs = InputsOf(spec, 0);
  ASSERT_EQ(inputs.size(), 4u);
  EXPECT_EQ(inputs[0].absorber, WeightRole::kInputNorm);
  ASSERT_EQ(inputs[0].products.size(), 1u);
  EXPECT_THAT(inputs[0].products[0],
              ElementsAre(WeightId{WeightRole::kQuery}, WeightId{WeightRole::kKey},
                          WeightId{WeightRole::kValue}));
  EXPECT_EQ(inputs[1].absorber, WeightRole::kValue);
  EXPECT_EQ(inputs[1].columns, 96);
  EXPECT_EQ(inputs[2].absorber, WeightRole::kPostNorm);
  EXPECT_EQ(inputs[3].absorber, WeightRole::kUp);
  EXPECT_EQ(AbsorberRow(spec, InputGroup::kMlpOut, 0, 71), 71);
  // Three query heads read the values of one key-value head.
  EXPECT_EQ(AbsorberRow(spec, InputGroup::kAttentionOut, 0, 2 * 16 + 1), 1);
  EXPECT_EQ(AbsorberRow(spec, InputGroup::kAttentionOut, 0, 3 * 16 + 1), 17);
}

// Heads that read one row have one scale, which the row is divided by.
TEST(LayerInputs, ScalesOfColumnsAreSpreadToTheRowsThatGiveThem) {
  const ModelSpec spec = Spec();
  std::vector<float> scales(96);
  for (size_t column = 0; column < scales.size(); ++column) {
    const int64_t row =
        AbsorberRow(spec, InputGroup::kAttentionOut, 0, static_cast<int64_t>(column));
    scales[column] = static_cast<float>(row + 2);
  }
  const std::vector<float> rows =
      AbsorberScales(spec, InputGroup::kAttentionOut, 0, /*rows=*/32, scales);
  ASSERT_EQ(rows.size(), 32u);
  for (size_t row = 0; row < rows.size(); ++row) EXPECT_EQ(rows[row], static_cast<float>(row + 2));
}

TEST(LayerInputs, OfTheResidualStreamItselfHaveNoScales) {
  ModelSpec spec = Spec();
  for (const Residual residual : {Residual::kPostNorm, Residual::kNormed}) {
    spec.layers[0].residual = residual;
    EXPECT_EQ(AbsorberOf(spec, kAttention), std::nullopt);
    EXPECT_EQ(AbsorberOf(spec, kMlp), std::nullopt);
    EXPECT_EQ(AbsorberOf(spec, kAttentionOut), WeightRole::kValue);
  }
  spec.layers[0].residual = Residual::kSandwich;
  EXPECT_EQ(AbsorberOf(spec, kMlp), WeightRole::kPostNorm);
}

TEST(LayerInputs, OfAttentionAndMlpBesideEachOtherAreOneIfTheyReadOneNorm) {
  ModelSpec spec = Spec();
  spec.layers[0].residual = Residual::kParallel;
  const std::vector<LayerInput> inputs = InputsOf(spec, 0);
  ASSERT_EQ(inputs.size(), 3u);
  ASSERT_EQ(inputs[0].products.size(), 2u) << "q, k and v; gate and up";
  EXPECT_EQ(inputs[0].absorber, WeightRole::kInputNorm);
  EXPECT_EQ(InputOf(spec, {WeightRole::kUp}), kAttention);
  spec.layers[0].residual = Residual::kParallelNorms;
  EXPECT_EQ(AbsorberOf(spec, kAttention), WeightRole::kInputNorm);
  EXPECT_EQ(AbsorberOf(spec, kMlp), WeightRole::kPostNorm);
}

TEST(LayerInputs, AfterAFunctionHaveScalesOnlyIfItPassesThemOn) {
  ModelSpec spec = Spec();
  MlpSpec& mlp = spec.layers[0].mlp;
  for (const auto activation : {ops::Activation::kSilu, ops::Activation::kGeluTanh}) {
    mlp.activation = activation;
    mlp.gated = true;
    EXPECT_EQ(AbsorberOf(spec, kMlpOut), WeightRole::kUp) << "times what the gate lets through";
    mlp.gated = false;
    EXPECT_EQ(AbsorberOf(spec, kMlpOut), std::nullopt);
  }
  mlp.activation = ops::Activation::kRelu;
  EXPECT_EQ(AbsorberOf(spec, kMlpOut), WeightRole::kUp);
}

TEST(LayerInputs, OfExpertsAreOneForAllBeforeThemAndOneForEachWithinThem) {
  ModelSpec spec = Spec();
  LayerSpec& layer = spec.layers[0];
  layer.moe = {.num_experts = 3,
               .expert = {.intermediate_size = 20},
               .routing = {.experts_per_token = 2},
               .shared_gate = true};
  const std::vector<LayerInput> inputs = InputsOf(spec, 0);
  const LayerInput& before = Find(inputs, kMlp);
  EXPECT_EQ(before.products.size(), 4u) << "of each expert and of the MLP beside them";
  EXPECT_THAT(before.plain, ElementsAre(WeightRole::kRouter, WeightRole::kSharedGate));
  EXPECT_EQ(before.absorber, WeightRole::kPostNorm);
  for (int64_t expert = 0; expert < 3; ++expert) {
    const LayerInput& within = Find(inputs, {InputGroup::kExpertOut, expert});
    EXPECT_EQ(within.columns, 20);
    EXPECT_EQ(within.absorber, WeightRole::kExpertUp);
    ASSERT_EQ(within.products.size(), 1u);
    EXPECT_EQ(within.products[0][0].expert, expert);
  }
  spec.norm.weight_offset = 1.0;
  EXPECT_EQ(AbsorberOf(spec, kMlp), std::nullopt) << "no power of two stays one";
  layer.moe.expert.activation = ops::Activation::kClampedSwiglu;
  EXPECT_EQ(AbsorberOf(spec, {InputGroup::kExpertOut, 1}), std::nullopt);
}

}  // namespace
}  // namespace tandem
