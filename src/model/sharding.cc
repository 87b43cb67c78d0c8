#include "model/sharding.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem {
namespace {

// Rows that a key-value head has.
int64_t HeadRows(const ModelSpec& spec, const WeightId& id) {
  const int64_t head_dim = spec.layer(id.layer).attention.head_dim;
  switch (RowOf(id.part).extent) {
    case WeightPartRow::Extent::kHeads:
      return 1;
    case WeightPartRow::Extent::kBlocks:
      return head_dim / SchemeOf(spec, id.role, id.layer).block_rows;
    default:
      return head_dim;
  }
}

// A norm of each head by itself has one weight for all heads.
ShardRule RuleOf(const ModelSpec& spec, const Sharding& sharding, const WeightId& id) {
  if (sharding.whole_experts && RowOf(id.role).per_expert) return ShardRule::kWhole;
  const bool norms_heads = id.role == WeightRole::kQueryNorm || id.role == WeightRole::kKeyNorm;
  if (norms_heads && spec.layer(id.layer).attention.head_norm == HeadNorm::kHead) {
    return ShardRule::kWhole;
  }
  return RowOf(id.role).shard;
}

// Rows or columns of a rank's part.
int64_t PartExtent(const ModelSpec& spec, const Sharding& sharding, const WeightId& id) {
  if (RowOf(id.role).shard == ShardRule::kKvHeadRows) {
    const AttentionSpec& attention = spec.layer(id.layer).attention;
    return std::max(attention.num_kv_heads / sharding.tp_size, int64_t{1}) * HeadRows(spec, id);
  }
  const int split = SplitOf(spec, sharding, id) == Split::kCols ? 1 : 0;
  const int64_t whole = WeightShape(spec, id)[split];
  return (whole + sharding.tp_size - 1) / sharding.tp_size;  // rounded up: the vocabulary alone
}

Status RefuseSplit(int64_t tp, const char* what, int64_t value) {
  return InvalidArgument("tp_size is " + std::to_string(tp) + ", which does not divide the " +
                         what + " (" + std::to_string(value) + ")");
}

// The ranks' parts of a quantized weight begin and end with its blocks.
Status CheckBlocks(const ModelSpec& spec, const Sharding& sharding, const WeightRow& row,
                   int64_t layer) {
  const QuantScheme scheme = SchemeOf(spec, row.role, layer);
  const Split split = SplitOf(spec, sharding, {row.role, layer});
  if (scheme.is_plain() || split == Split::kNone || sharding.tp_size == 1) return {};
  const int64_t tp = sharding.tp_size;
  if (split == Split::kRows) {
    const bool heads = row.shard == ShardRule::kKvHeadRows;
    const int64_t rows = heads ? spec.layer(layer).attention.head_dim : row.rows(spec, layer) / tp;
    if (rows % scheme.block_rows == 0) return {};
    return RefuseSplit(tp, "blocks of rows with one scale of", scheme.block_rows);
  }
  if (scheme.input_order) {
    return Unimplemented("tp_size is " + std::to_string(tp) + ", but the columns of " +
                         std::string(row.hf_name) +
                         " are stored in an order of their own (act-order) and cannot be split: "
                         "experts may be divided whole, and files for tp_size 1 are read by any "
                         "number of ranks");
  }
  const int64_t together = std::max(scheme.block_columns, scheme.elements_per_byte());
  if (row.columns(spec, layer) / tp % together == 0) return {};
  return RefuseSplit(tp, "groups of columns with one scale of", scheme.block_columns);
}

Status CheckRule(const ModelSpec& spec, const Sharding& sharding, const WeightRow& row,
                 int64_t layer) {
  const int64_t tp = sharding.tp_size;
  const auto even = [tp](const char* what, int64_t value) {
    return value % tp == 0 ? Status() : RefuseSplit(tp, what, value);
  };
  const int64_t kv_heads = spec.layer(layer).attention.num_kv_heads;
  switch (RuleOf(spec, sharding, {row.role, layer})) {
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
      if (SplitOf(spec, sharding, {row.role, layer}) != Split::kCols) return {};
      return even("hidden size", row.columns(spec, layer));
  }
  return {};
}

// The first expert of a rank. If they do not divide evenly, some ranks have one more.
int64_t FirstExpert(const MoeSpec& moe, const RankPlace& place, int64_t rank) {
  return rank * moe.num_experts / place.ranks;
}

// Makes exceptions of the weights that a rank stores in another scheme than the whole model.
void AddPartSchemes(const Sharding& sharding, ModelSpec& spec) {
  const ModelSpec whole = spec;
  for (const WeightId& id : StoredWeights(whole)) {
    if (id.part != WeightPart::kWeight || id.expert > 0) continue;
    const OrderedPart part = OrderedPartOf(whole, sharding, id.role, id.layer);
    if (part == OrderedPart::kNone) continue;
    QuantScheme scheme;
    if (part == OrderedPart::kNeurons) {
      scheme = SchemeOf(whole, id.role, id.layer);
      scheme.input_order = false;
    }
    std::erase_if(spec.exceptions, [&](const SchemeException& other) {
      return other.role == id.role && other.layer == id.layer;
    });
    spec.exceptions.push_back({id.role, id.layer, scheme});
  }
}

// Leaves in each layer the heads and neurons, or experts, of one rank.
void ShareLayers(ModelSpec& spec) {
  const RankPlace& place = spec.place;
  const int64_t ranks = place.ranks;
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& attention = layer.attention;
    attention.num_heads /= ranks;
    attention.num_kv_heads = std::max(attention.num_kv_heads / ranks, int64_t{1});
    layer.mlp.intermediate_size /= ranks;
    if (!place.whole_experts) {
      layer.moe.expert.intermediate_size /= ranks;
    } else if (layer.moe.num_experts > 0) {
      const int64_t first = FirstExpert(layer.moe, place, place.rank);
      layer.moe.some_experts = FirstExpert(layer.moe, place, place.rank + 1) - first;
      layer.moe.routing.first = static_cast<int32_t>(first);
    }
  }
}

// Leaves the layers of one stage, with the exceptions that are theirs; without a stage none.
void TakeStage(const Sharding& sharding, ModelSpec& spec) {
  const bool has_layers = spec.place.has_layers();
  const int64_t begin = has_layers ? FirstLayer(spec, sharding, spec.place.stage) : 0;
  const int64_t end = has_layers ? FirstLayer(spec, sharding, spec.place.stage + 1) : 0;
  const std::vector<LayerSpec> all = std::move(spec.layers);
  spec.layers = {all.begin() + begin, all.begin() + end};
  for (const LayerSpec& layer : all) {
    const auto is_in = [&layer](const std::vector<LayerSpec>& layers) {
      return std::ranges::find(layers, layer) != layers.end();
    };
    if (!is_in(spec.layers) && !is_in(spec.other_layers)) spec.other_layers.push_back(layer);
  }
  std::erase_if(spec.exceptions, [&](const SchemeException& exception) {
    return RowOf(exception.role).per_layer && (exception.layer < begin || exception.layer >= end);
  });
  for (SchemeException& exception : spec.exceptions) {
    if (RowOf(exception.role).per_layer) exception.layer -= begin;
  }
}

}  // namespace

Status CheckSharding(const ModelSpec& spec, const Sharding& sharding) {
  const int64_t tp = sharding.tp_size;
  if (tp < 1 || tp > 64) {
    return InvalidArgument("tp_size is " + std::to_string(tp) + "; it must be between 1 and 64");
  }
  if (sharding.pp_size < 1 || sharding.pp_size > spec.num_layers()) {
    return InvalidArgument("pp_size is " + std::to_string(sharding.pp_size) +
                           "; it must be between 1 and the number of layers (" +
                           std::to_string(spec.num_layers()) + ")");
  }
  for (const LayerSpec& layer : spec.layers) {
    const int64_t experts = layer.moe.num_experts;
    if (sharding.whole_experts && experts > 0 && experts < tp) {
      return InvalidArgument("tp_size is " + std::to_string(tp) + ", but a layer has only " +
                             std::to_string(experts) + " experts to divide");
    }
  }
  for (const WeightId& id : StoredWeights(spec)) {
    if (id.part != WeightPart::kWeight) continue;
    TANDEM_RETURN_IF_ERROR(CheckRule(spec, sharding, RowOf(id.role), id.layer));
    TANDEM_RETURN_IF_ERROR(CheckBlocks(spec, sharding, RowOf(id.role), id.layer));
  }
  return {};
}

Split SplitOf(const ModelSpec& spec, const Sharding& sharding, const WeightId& id) {
  const WeightPartRow::Extent extent = RowOf(id.part).extent;
  if (extent == WeightPartRow::Extent::kOne) return Split::kNone;
  switch (RuleOf(spec, sharding, id)) {
    case ShardRule::kWhole:
      return Split::kNone;
    case ShardRule::kEmbedding:
      if (!sharding.parallel_embedding) return Split::kNone;
      return sharding.embedding_dim == 0 ? Split::kRows : Split::kCols;
    case ShardRule::kHeadColumns:
    case ShardRule::kNeuronColumns:
      switch (extent) {
        case WeightPartRow::Extent::kElements:
          return Split::kCols;
        case WeightPartRow::Extent::kBlocks:
          return WeightShape(spec, id).rank() == 2 ? Split::kCols : Split::kNone;
        case WeightPartRow::Extent::kColumns:
          return Split::kRows;  // of a vector
        default:
          // A rank's sum has all rows, and therefore all of their scales.
          return Split::kNone;
      }
    case ShardRule::kHeadRows:
    case ShardRule::kKvHeadRows:
    case ShardRule::kNeuronRows:
    case ShardRule::kVocabularyRows:
      return extent == WeightPartRow::Extent::kColumns ? Split::kNone : Split::kRows;
  }
  return Split::kNone;
}

OrderedPart OrderedPartOf(const ModelSpec& spec, const Sharding& sharding, WeightRole role,
                          int64_t layer) {
  const QuantScheme scheme = SchemeOf(spec, role, layer);
  if (sharding.tp_size == 1 || !scheme.input_order) return OrderedPart::kNone;
  if (SplitOf(spec, sharding, {role, layer}) != Split::kCols) return OrderedPart::kNone;
  if (RowOf(role).shard != ShardRule::kNeuronColumns) return OrderedPart::kWidened;
  const int64_t part = RowOf(role).columns(spec, layer) / sharding.tp_size;
  bool whole_blocks = !scheme.input_factors &&
                      part % std::max(scheme.block_columns, scheme.elements_per_byte()) == 0;
  for (const WeightRole neurons :
       {WeightRole::kGate, WeightRole::kUp, WeightRole::kExpertGate, WeightRole::kExpertUp}) {
    if (TakerOfNeurons(neurons) != role) continue;
    whole_blocks = whole_blocks && SchemeOf(spec, neurons, layer).block_rows <= 1;
  }
  if (whole_blocks) return OrderedPart::kNeurons;
  return RowOf(role).per_expert ? OrderedPart::kNone : OrderedPart::kWidened;
}

std::optional<WeightRole> TakerOfNeurons(WeightRole role) {
  if (RowOf(role).shard != ShardRule::kNeuronRows) return std::nullopt;
  return RowOf(role).per_expert ? WeightRole::kExpertDown : WeightRole::kDown;
}

bool IsSummed(const WeightId& id) {
  const ShardRule rule = RowOf(id.role).shard;
  return rule == ShardRule::kHeadColumns || rule == ShardRule::kNeuronColumns;
}

Shape PartShape(const ModelSpec& spec, const Sharding& sharding, const WeightId& id) {
  const Shape whole = WeightShape(spec, id);
  const Split split = SplitOf(spec, sharding, id);
  // A block of scales may have rows of several heads, so long as no rank has only some of them.
  if (split == Split::kNone || sharding.tp_size == 1) return whole;
  const int64_t extent = PartExtent(spec, sharding, id);
  if (split == Split::kCols) return {whole[0], extent};
  return whole.rank() == 1 ? Shape{extent} : Shape{extent, whole[1]};
}

int64_t PartBegin(const ModelSpec& spec, const Sharding& sharding, const WeightId& id,
                  int64_t rank) {
  if (SplitOf(spec, sharding, id) == Split::kNone) return 0;
  if (RowOf(id.role).shard == ShardRule::kKvHeadRows) {
    const AttentionSpec& attention = spec.layer(id.layer).attention;
    return rank * attention.num_kv_heads / sharding.tp_size * HeadRows(spec, id);
  }
  return rank * PartExtent(spec, sharding, id);
}

Sharding ShardingOf(const RankPlace& place) {
  return {.tp_size = place.ranks,
          .parallel_embedding = place.ranks > 1,
          .pp_size = place.stages,
          .whole_experts = place.whole_experts};
}

Result<ModelSpec> RankSpec(const ModelSpec& whole, const RankPlace& place) {
  TANDEM_CHECK(place.rank >= 0 && place.rank < place.ranks, "a rank beyond the number of ranks");
  TANDEM_CHECK(place.stage >= RankPlace::kNoStage && place.stage < place.stages,
               "a stage beyond their number");
  ModelSpec spec = whole;
  const Sharding sharding = ShardingOf(place);
  const bool is_split = place.ranks > 1 || place.stages > 1;
  if (is_split || !place.has_layers()) {
    // While it is still that of the whole model.
    AddPartSchemes(sharding, spec);
    TANDEM_RETURN_IF_ERROR(CheckSharding(spec, sharding));
  }
  spec.place = place;
  if (place.has_layers() && !is_split) return spec;
  spec.tied_head = false;
  spec.head_bias = whole.head_bias && !whole.tied_head;
  if (place.ranks > 1) ShareLayers(spec);
  if (place.stages > 1 || !place.has_layers()) TakeStage(sharding, spec);
  return spec;
}

int64_t FirstLayer(const ModelSpec& spec, const Sharding& sharding, int64_t stage) {
  const int64_t layers = spec.num_layers();
  return stage * (layers / sharding.pp_size) + std::min(stage, layers % sharding.pp_size);
}

int64_t StageOf(const ModelSpec& spec, const Sharding& sharding, const WeightId& id) {
  if (IsOfFirstStage(id.role)) return 0;
  if (IsOfLastStage(id.role)) return sharding.pp_size - 1;
  int64_t stage = 0;
  while (FirstLayer(spec, sharding, stage + 1) <= id.layer) ++stage;
  return stage;
}

}  // namespace tandem
