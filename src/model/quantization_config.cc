#include "model/quantization_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "model/hf_config.h"

namespace tandem {
namespace {

using Inputs = QuantScheme::Inputs;

constexpr const char* kSupported =
    "; supported are fp8 (e4m3) weights with one scale or one per row: "
    "compressed-tensors (float-quantized), fp8 (no blocks) and modelopt (FP8)";

void RefuseScheme(const JsonFields& json, const char* key) { Refuse(json, key, kSupported); }

void RequireFp8(const JsonFields& scheme) {
  if (scheme.Int("num_bits") != 8) RefuseScheme(scheme, "num_bits");
  if (scheme.Text("type") != "float") RefuseScheme(scheme, "type");
}

// How inputs are rounded according to one of config_groups.
Inputs ReadGroup(const JsonFields& group) {
  const auto weights = group.Object("weights");
  if (!weights) {
    group.Fail("weights", "is missing");
    return Inputs::kPlain;
  }
  RequireFp8(*weights);
  const std::string strategy = weights->Text("strategy");
  if (strategy != "tensor" && strategy != "channel") RefuseScheme(*weights, "strategy");
  if (group.Has("output_activations")) RefuseScheme(group, "output_activations");
  const auto inputs = group.Object("input_activations");
  if (!inputs) {
    group.Fail("input_activations", "is missing; fp8 weights without fp8 inputs are not supported");
    return Inputs::kPlain;
  }
  RequireFp8(*inputs);
  const bool dynamic = inputs->Bool("dynamic", false);
  if (inputs->Text("strategy") != (dynamic ? "token" : "tensor")) RefuseScheme(*inputs, "strategy");
  return dynamic ? Inputs::kDynamic : Inputs::kStatic;
}

Inputs ReadCompressedTensors(const JsonFields& json) {
  if (json.Text("format") != "float-quantized") RefuseScheme(json, "format");
  if (const auto transforms = json.Object("transform_config");
      transforms && !transforms->Keys().empty()) {
    RefuseScheme(json, "transform_config");
  }
  const auto groups = json.Object("config_groups");
  if (!groups || groups->Keys().empty()) {
    json.Fail("config_groups", "is missing");
    return Inputs::kPlain;
  }
  std::optional<Inputs> inputs;
  for (const std::string& name : groups->Keys()) {
    const auto group = groups->Object(name);
    const Inputs of_group = group ? ReadGroup(*group) : Inputs::kPlain;
    if (inputs.value_or(of_group) != of_group) {
      groups->Fail(name, "differs from the other groups in its input_activations");
    }
    inputs = of_group;
  }
  return *inputs;
}

// vLLM's own format; a dynamic scale of a whole batch becomes one per row, which is finer.
Inputs ReadFp8(const JsonFields& json) {
  if (json.Has("weight_block_size")) RefuseScheme(json, "weight_block_size");
  const std::string scheme = json.Text("activation_scheme");
  if (scheme != "static" && scheme != "dynamic") RefuseScheme(json, "activation_scheme");
  return scheme == "static" ? Inputs::kStatic : Inputs::kDynamic;
}

struct QuantAlgo {
  std::string_view name;
  QuantScheme scheme;
};
constexpr std::array kQuantAlgos = {
    QuantAlgo{"FP8", Fp8Scheme(Inputs::kStatic)},
    QuantAlgo{"FP8_PER_CHANNEL_PER_TOKEN", Fp8Scheme(Inputs::kDynamic)},
};

}  // namespace

void ReadQuantization(const JsonFields& config, ModelSpec& spec) {
  const auto json = config.Object("quantization_config");
  if (!json) return;
  const std::string method = json->Text("quant_method");
  if (method == "compressed-tensors") {
    spec.quantization = Fp8Scheme(ReadCompressedTensors(*json));
  } else if (method == "fp8") {
    spec.quantization = Fp8Scheme(ReadFp8(*json));
  } else if (method == "modelopt") {
    spec.quantization = ReadQuantAlgo(*json);
  } else {
    RefuseScheme(*json, "quant_method");
  }
}

QuantScheme ReadQuantAlgo(const JsonFields& json) {
  const auto* const found =
      std::ranges::find(kQuantAlgos, json.Text("quant_algo"), &QuantAlgo::name);
  if (found != kQuantAlgos.end()) return found->scheme;
  std::string names;
  for (const QuantAlgo& algo : kQuantAlgos)
    names += (names.empty() ? "" : ", ") + std::string(algo.name);
  Refuse(json, "quant_algo", "; supported are " + names);
  return {};
}

std::string_view QuantAlgoOf(const QuantScheme& scheme) {
  const auto* const found = std::ranges::find(kQuantAlgos, scheme, &QuantAlgo::scheme);
  TANDEM_CHECK(found != kQuantAlgos.end(), "a scheme that CheckScheme accepts has a quant_algo");
  return found->name;
}

}  // namespace tandem
