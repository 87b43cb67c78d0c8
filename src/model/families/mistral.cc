#include "model/families/mistral.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"MistralForCausalLM"};

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 131072}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  ReadWindows(config, spec);
}

}  // namespace

Family MistralFamily() {
  return {.name = "mistral", .architectures = kArchitectures, .read = Read};
}

}  // namespace tandem
