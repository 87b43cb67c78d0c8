#include "model/tensor_source.h"

namespace tandem {

TensorSource StandardSource(const ModelSpec& /*spec*/, const WeightId& id) {
  const WeightRow& row = RowOf(id.role);
  TensorSource source;
  if (row.per_layer) source.name = "model.layers." + std::to_string(id.layer) + ".";
  source.name += row.hf_name;
  source.name += id.part == WeightPart::kCacheScale ? row.cache_scale : RowOf(id.part).hf_suffix;
  return source;
}

}  // namespace tandem
