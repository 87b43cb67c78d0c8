#include "model/sharding.h"

#include <algorithm>
#include <string>

namespace tandem {
namespace {

// Rows that a key-value head has.
int64_t HeadRows(const ModelSpec& spec, const WeightId& id) {
  const bool one = RowOf(id.part).extent == WeightPartRow::Extent::kHeads;
  return one ? 1 : spec.layer(id.layer).attention.head_dim;
}

// Rows or columns of a rank's part.
int64_t PartExtent(const ModelSpec& spec, const Sharding& sharding, const WeightId& id) {
  if (RowOf(id.role).shard == ShardRule::kKvHeadRows) {
    const AttentionSpec& attention = spec.layer(id.layer).attention;
    return std::max(attention.num_kv_heads / sharding.tp_size, int64_t{1}) * HeadRows(spec, id);
  }
  const int split = SplitOf(sharding, id.role, id.part) == Split::kCols ? 1 : 0;
  const int64_t whole = WeightShape(spec, id)[split];
  return (whole + sharding.tp_size - 1) / sharding.tp_size;  // rounded up: the vocabulary alone
}

Status RefuseSplit(int64_t tp, const char* what, int64_t value) {
  return InvalidArgument("tp_size is " + std::to_string(tp) + ", which does not divide the " +
                         what + " (" + std::to_string(value) + ")");
}

Status CheckRule(const ModelSpec& spec, const Sharding& sharding, const WeightRow& row,
                 int64_t layer) {
  const int64_t tp = sharding.tp_size;
  const auto even = [tp](const char* what, int64_t value) {
    return value % tp == 0 ? Status() : RefuseSplit(tp, what, value);
  };
  const int64_t kv_heads = spec.layer(layer).attention.num_kv_heads;
  switch (row.shard) {
    case ShardRule::kWhole:
    case ShardRule::kVocabularyRows:
      return {};
    case ShardRule::kHeadRows:
    case ShardRule::kHeadColumns:
      return even("attention heads", spec.layer(layer).attention.num_heads);
    case ShardRule::kKvHeadRows:
      return tp % kv_heads == 0 ? Status() : even("key-value heads", kv_heads);
    case ShardRule::kNeuronRows:
      return even("intermediate size", row.rows(spec, layer));
    case ShardRule::kNeuronColumns:
      return even("intermediate size", row.columns(spec, layer));
    case ShardRule::kEmbedding:
      if (SplitOf(sharding, row.role, WeightPart::kWeight) != Split::kCols) return {};
      return even("hidden size", row.columns(spec, layer));
  }
  return {};
}

}  // namespace

Status CheckSharding(const ModelSpec& spec, const Sharding& sharding) {
  const int64_t tp = sharding.tp_size;
  if (tp < 1 || tp > 64) {
    return InvalidArgument("tp_size is " + std::to_string(tp) + "; it must be between 1 and 64");
  }
  for (const WeightId& id : StoredWeights(spec)) {
    if (id.part != WeightPart::kWeight) continue;
    TANDEM_RETURN_IF_ERROR(CheckRule(spec, sharding, RowOf(id.role), id.layer));
  }
  return {};
}

Split SplitOf(const Sharding& sharding, WeightRole role, WeightPart part) {
  const WeightPartRow::Extent extent = RowOf(part).extent;
  if (extent == WeightPartRow::Extent::kOne) return Split::kNone;
  switch (RowOf(role).shard) {
    case ShardRule::kWhole:
      return Split::kNone;
    case ShardRule::kEmbedding:
      if (!sharding.parallel_embedding) return Split::kNone;
      return sharding.embedding_dim == 0 ? Split::kRows : Split::kCols;
    case ShardRule::kHeadColumns:
    case ShardRule::kNeuronColumns:
      // Their products are summed over the ranks, so the bias is added only once, and a rank's sum
      // has all rows and therefore all scales.
      return extent == WeightPartRow::Extent::kElements ? Split::kCols : Split::kNone;
    case ShardRule::kHeadRows:
    case ShardRule::kKvHeadRows:
    case ShardRule::kNeuronRows:
    case ShardRule::kVocabularyRows:
      return Split::kRows;
  }
  return Split::kNone;
}

Shape PartShape(const ModelSpec& spec, const Sharding& sharding, const WeightId& id) {
  const Shape whole = WeightShape(spec, id);
  const Split split = SplitOf(sharding, id.role, id.part);
  if (split == Split::kNone) return whole;
  const int64_t extent = PartExtent(spec, sharding, id);
  if (split == Split::kCols) return {whole[0], extent};
  return whole.rank() == 1 ? Shape{extent} : Shape{extent, whole[1]};
}

int64_t PartBegin(const ModelSpec& spec, const Sharding& sharding, const WeightId& id,
                  int64_t rank) {
  if (SplitOf(sharding, id.role, id.part) == Split::kNone) return 0;
  if (RowOf(id.role).shard == ShardRule::kKvHeadRows) {
    const AttentionSpec& attention = spec.layer(id.layer).attention;
    return rank * attention.num_kv_heads / sharding.tp_size * HeadRows(spec, id);
  }
  return rank * PartExtent(spec, sharding, id);
}

}  // namespace tandem
