#include "model/tensor_source.h"

#include <algorithm>

namespace tandem {
namespace {

std::string_view SuffixOf(const WeightId& id) {
  // Parameters of the router and of attention, not modules.
  const bool parameter = id.role == WeightRole::kRouterCorrection || id.role == WeightRole::kSinks;
  if (parameter) return {};
  return id.part == WeightPart::kCacheScale ? RowOf(id.role).cache_scale : RowOf(id.part).hf_suffix;
}

}  // namespace

TensorSource StandardSource(const ModelSpec& /*spec*/, const WeightId& id) {
  const WeightRow& row = RowOf(id.role);
  TensorSource source;
  if (row.per_layer) source.name = "model.layers." + std::to_string(id.layer) + ".";
  source.name += WithNumber(row.hf_name, id.expert);
  source.name += SuffixOf(id);
  return source;
}

RowMap RowRange(int64_t first, int64_t rows, int64_t of) {
  return {.first = first, .block = rows, .stride = rows, .of = of};
}

TensorSource NamedSource(const ModelSpec& spec, const WeightId& id,
                         std::span<const RoleName> names) {
  const auto found = std::ranges::find(names, id.role, &RoleName::role);
  if (found == names.end()) return StandardSource(spec, id);
  TensorSource source;
  source.name = WithNumber(WithNumber(found->name, id.layer), id.expert);
  source.name += SuffixOf(id);
  return source;
}

TensorSource SourceWithShared(const ModelSpec& spec, const WeightId& id, std::string_view name) {
  TensorSource source = StandardSource(spec, id);
  const bool shared =
      id.role == WeightRole::kGate || id.role == WeightRole::kUp || id.role == WeightRole::kDown;
  constexpr std::string_view kMlp = "mlp.";
  if (shared && spec.has_experts(id.layer)) {
    source.name.insert(source.name.find(kMlp) + kMlp.size(), std::string(name) + ".");
  }
  return source;
}

namespace {

// The query, key or value of [q; k; v].
RowMap StackedQkv(const AttentionSpec& attention, WeightRole role) {
  const int64_t query = attention.query_rows(), kv = attention.kv_rows();
  const int64_t all = attention.qkv_rows();
  if (role == WeightRole::kQuery) return RowRange(0, query, all);
  return RowRange(role == WeightRole::kKey ? query : query + kv, kv, all);
}

RowMap GroupedQkv(const AttentionSpec& attention, WeightRole role) {
  const int64_t dim = attention.head_dim;
  const int64_t queries = attention.num_heads / attention.num_kv_heads * dim;
  RowMap map = {
      .first = 0, .block = queries, .stride = queries + 2 * dim, .of = attention.qkv_rows()};
  if (role == WeightRole::kQuery) return map;
  map.first = role == WeightRole::kKey ? queries : queries + dim;
  map.block = dim;
  return map;
}

TensorSource FusedQkvSource(const ModelSpec& spec, const WeightId& id,
                            std::span<const RoleName> names,
                            RowMap (*rows)(const AttentionSpec& attention, WeightRole role)) {
  TensorSource source = NamedSource(spec, id, names);
  if (RowOf(id.role).pack == WeightPack::kQkv) {
    source.rows = rows(spec.layer(id.layer).attention, id.role);
  }
  return source;
}

}  // namespace

TensorSource StackedQkvSource(const ModelSpec& spec, const WeightId& id,
                              std::span<const RoleName> names) {
  return FusedQkvSource(spec, id, names, StackedQkv);
}

TensorSource GroupedQkvSource(const ModelSpec& spec, const WeightId& id,
                              std::span<const RoleName> names) {
  return FusedQkvSource(spec, id, names, GroupedQkv);
}

}  // namespace tandem
