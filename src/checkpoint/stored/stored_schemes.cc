#include "checkpoint/stored/stored_schemes.h"

#include <algorithm>
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
    if (weight.scheme != expected) spec.exceptions.push_back(weight);
  }
  return ValidateSpec(spec);
}

}  // namespace tandem
