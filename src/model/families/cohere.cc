#include "model/families/cohere.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"CohereForCausalLM"};

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.epsilon = "layer_norm_eps",
             .default_positions = 8192,
             .default_epsilon = 1e-5,
             .default_tied = true},
            spec);
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.logit_scale = config.Number("logit_scale", 0.0625);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.residual = Residual::kParallel;
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("attention_bias", false);
    if (config.Bool("use_qk_norm", false)) layer.attention.head_norm = HeadNorm::kHeadsOwn;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  ForEachLayer(spec, [](LayerSpec& layer) { layer.attention.rope.interleaved = true; });
}

}  // namespace

Family CohereFamily() { return {.name = "cohere", .architectures = kArchitectures, .read = Read}; }

}  // namespace tandem
