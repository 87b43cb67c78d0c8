#include "model/families/llama.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

// The second name was written by the very first conversions.
constexpr std::array<std::string_view, 2> kArchitectures = {"LlamaForCausalLM", "LLaMAForCausalLM"};

// Settings that would change the result and that Llama does not have. Keys that it ignores
// (pretraining_tp, use_cache, attention_dropout, ...) are ignored here too.
void RefuseUnsupported(const JsonFields& config) {
  if (config.Has("sliding_window") && config.Bool("use_sliding_window", true)) {
    Refuse(config, "sliding_window", "; attention is over the whole context");
  }
  for (const std::string& kind : config.Texts("layer_types")) {
    if (kind != "full_attention") config.Fail("layer_types", "\"" + kind + "\" is not supported");
  }
}

void Read(const JsonFields& config, ModelSpec& spec) {
  RefuseUnsupported(config);
  ReadSizes(config, {}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("attention_bias", false);
    layer.mlp.bias = config.Bool("mlp_bias", false);
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
}

}  // namespace

Family LlamaFamily() {
  return {.name = "llama",
          .architectures = kArchitectures,
          .read = Read,
          .checkpoint = {.architecture = kArchitectures.front()}};
}

}  // namespace tandem
