#include "model/weight_source.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "ops/backend.h"
#include "tensor/convert.h"

namespace tandem {

Result<std::vector<float>> ReadFloats(WeightSource& source, const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, source.Get(id));
  std::vector<float> floats(static_cast<size_t>(tensor.NumElements()));
  ConvertElements(tensor, {floats.data(), DType::kF32, tensor.shape, {}});
  source.Release();
  return floats;
}

Result<ops::LinearPart> ReadPart(WeightSource& source, WeightRole role, int64_t layer,
                                 int64_t expert) {
  ops::LinearPart part;
  part.scheme = SchemeOf(source.spec(), role, layer);
  for (const WeightPart kind : WeightParts(source.spec(), role, layer)) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, source.Get({role, layer, kind, expert}));
    switch (kind) {
      case WeightPart::kWeight:
        part.weight = tensor;
        break;
      case WeightPart::kBias:
        part.bias = tensor;
        break;
      case WeightPart::kScale:
        part.scale = tensor;
        break;
      case WeightPart::kZero:
        part.zero = tensor;
        break;
      case WeightPart::kInputFactors:
        part.input_factors = tensor;
        break;
      case WeightPart::kInputOrder:
        part.input_order = tensor;
        break;
      case WeightPart::kInputScale:  // one for all parts of a pack
      case WeightPart::kCacheScale:  // of what the product becomes in the cache
      case WeightPart::kCount:
        break;
    }
  }
  return part;
}

Result<float> LargestInputScale(WeightSource& source, std::span<const WeightRole> roles,
                                const WeightId& of) {
  float largest = 0.0f;
  for (const WeightRole role : roles) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor scale,
                            source.Get({role, of.layer, WeightPart::kInputScale, of.expert}));
    largest = std::max(largest, *scale.As<float>());
  }
  return largest;
}

Result<Tensor> CommonVector(WeightSource& source, std::span<const WeightRole> roles,
                            const WeightId& of) {
  const auto get = [&](WeightRole role) {
    return source.Get({role, of.layer, of.part, of.expert});
  };
  TANDEM_ASSIGN_OR_RETURN(const Tensor first, get(roles.front()));
  const auto bytes = static_cast<size_t>(first.NumBytes());
  for (const WeightRole role : roles.subspan(1)) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor other, get(role));
    if (std::memcmp(first.data, other.data, bytes) == 0) continue;
    return Unimplemented("layer " + std::to_string(of.layer) + ": " +
                         std::string(RowOf(roles.front()).hf_name) + " and " +
                         std::string(RowOf(role).hf_name) +
                         " are one product, but their inputs have different factors or orders");
  }
  return first;
}

}  // namespace tandem
