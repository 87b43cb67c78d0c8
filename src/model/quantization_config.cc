#include "model/quantization_config.h"

#include <algorithm>
#include <array>
#include <string>

#include "model/hf_config.h"

namespace tandem {
namespace {

using Inputs = QuantScheme::Inputs;

struct QuantAlgo {
  std::string_view name;
  QuantScheme scheme;
};
constexpr std::array kQuantAlgos = {
    QuantAlgo{"FP8", Fp8Scheme(Inputs::kStatic)},
    QuantAlgo{"FP8_PER_CHANNEL_PER_TOKEN", Fp8Scheme(Inputs::kDynamic)},
};

}  // namespace

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

Status CheckQuantAlgo(const ModelSpec& spec) {
  const bool named =
      spec.quantization.is_plain() ||
      std::ranges::find(kQuantAlgos, spec.quantization, &QuantAlgo::scheme) != kQuantAlgos.end();
  if (named && spec.exceptions.empty()) return {};
  return Unimplemented("a checkpoint cannot hold weights in " + DescribeScheme(spec.quantization) +
                       (spec.exceptions.empty() ? "" : " beside others") +
                       "; serve the folder itself, or build an engine from it");
}

std::string_view QuantAlgoOf(const QuantScheme& scheme) {
  const auto* const found = std::ranges::find(kQuantAlgos, scheme, &QuantAlgo::scheme);
  TANDEM_CHECK(found != kQuantAlgos.end(), "a scheme that CheckScheme accepts has a quant_algo");
  return found->name;
}

}  // namespace tandem
