#include "model/families/mistral.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kArchitectures = {"MistralForCausalLM",
                                                            "Mistral3ForConditionalGeneration"};

void Read(const JsonFields& config, ModelSpec& spec) {
  // Beside a model that sees there may be another text model, whose queries grow.
  if (config.Text("model_type", "") == "ministral3") {
    return Refuse(config, "model_type", "; supported is mistral");
  }
  ReadSizes(config, {.default_positions = 131072}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  ReadWindows(config, spec);
}

}  // namespace

Family MistralFamily() {
  return {.name = "mistral",
          .architectures = kArchitectures,
          .read = Read,
          .checkpoint = {.architecture = kArchitectures.front()}};
}

}  // namespace tandem
