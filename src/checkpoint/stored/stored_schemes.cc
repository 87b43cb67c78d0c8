#include "checkpoint/stored/stored_schemes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem {
namespace {

// The scheme that most of the quantized layers have; plain if none is quantized.
QuantScheme MostFrequent(const std::vector<SchemeException>& schemes) {
  std::vector<std::pair<QuantScheme, int>> counts;
  for (const SchemeException& weight : schemes) {
    if (weight.scheme.is_plain() || !RowOf(weight.role).quantizable) continue;
    const auto seen = std::ranges::find(counts, weight.scheme, &std::pair<QuantScheme, int>::first);
    if (seen == counts.end()) {
      counts.emplace_back(weight.scheme, 1);
    } else {
      ++seen->second;
    }
  }
  const auto most = std::ranges::max_element(counts, {}, &std::pair<QuantScheme, int>::second);
  return most == counts.end() ? QuantScheme{} : most->first;
}

}  // namespace

std::vector<WeightId> Products(const ModelSpec& spec) {
  std::vector<WeightId> products;
  for (const WeightId& id : StoredWeights(spec)) {
    const bool is_product =
        id.part == WeightPart::kWeight && RowOf(id.role).pack != WeightPack::kNone;
    if (is_product) products.push_back(id);
  }
  return products;
}

Status SetStoredSchemes(const std::vector<SchemeException>& stored, ModelSpec& spec) {
  spec.quantization = MostFrequent(stored);
  spec.exceptions.clear();
  for (const SchemeException& weight : stored) {
    const QuantScheme expected = RowOf(weight.role).quantizable ? spec.quantization : QuantScheme{};
    const bool is_next_expert =  // the experts of a layer come one after another
        &weight != stored.data() && (&weight)[-1].role == weight.role &&
        (&weight)[-1].layer == weight.layer;
    if (is_next_expert && (&weight)[-1].scheme != weight.scheme) {
      return Unimplemented("layer " + std::to_string(weight.layer) + ": \"" +
                           std::string(RowOf(weight.role).hf_name) +
                           "\" is quantized in other ways for some experts than for others");
    }
    if (weight.scheme != expected && !is_next_expert) spec.exceptions.push_back(weight);
  }
  return ValidateSpec(spec);
}

}  // namespace tandem
