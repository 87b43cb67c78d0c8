// How weights are split over tensor-parallel ranks, according to the role table: shapes and first
// rows of each rank's part; how layers are split over pipeline stages; and the model that a rank of
// a stage computes. Pure values and functions.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "model/weight_roles.h"

namespace tandem {

struct Sharding {
  int64_t tp_size = 1;
  bool parallel_embedding = false;  // the embedding is split too
  int64_t embedding_dim = 0;        // along the vocabulary (0) or the hidden size (1)
  int64_t pp_size = 1;              // stages that each hold some of the layers
  // Experts are divided by their numbers, and not each of them by its neurons.
  bool whole_experts = false;

  // Files of a model; that of a rank of a stage is number stage * tp_size + rank. Readers merge
  // them, whatever ranks will compute.
  int64_t num_files() const { return tp_size * pp_size; }
};

// The split must be even: heads, intermediate size and key-value heads (unless replicated), but for
// whole experts, of which each rank has at least one. Every stage has a layer.
Status CheckSharding(const ModelSpec& spec, const Sharding& sharding);

enum class Split : uint8_t { kNone, kRows, kCols };
Split SplitOf(const ModelSpec& spec, const Sharding& sharding, const WeightId& id);

// How a rank stores its part of a weight that is split by columns while its columns are stored in
// an order of their own (QuantScheme::input_order). Checkpoint files of ranks have no such parts.
enum class OrderedPart : uint8_t {
  // The weight is stored in the order of its inputs, is not split by columns, or cannot be: experts
  // whose neurons on a rank are not a whole number of groups. They would take four times the
  // memory,
  // and can be divided whole.
  kNone,
  // Quantized as stored. Each rank has columns that follow each other as stored, and of the MLP the
  // neurons that these columns multiply, in the same order: so its part needs no order.
  kNeurons,
  // Widened to the model's type: attention's heads lie in any order over the groups; and so are
  // neurons whose number on a rank is not a whole number of groups.
  kWidened,
};
OrderedPart OrderedPartOf(const ModelSpec& spec, const Sharding& sharding, WeightRole role,
                          int64_t layer);
// Of a role whose rows are an MLP's neurons (gate and up): the role whose columns are these neurons
// (down). Of any other: nullopt.
std::optional<WeightRole> TakerOfNeurons(WeightRole role);

// The products with this weight are summed over the ranks, so that only the first adds its bias.
bool IsSummed(const WeightId& id);

// Shape of a rank's part.
Shape PartShape(const ModelSpec& spec, const Sharding& sharding, const WeightId& id);
// First row (or column) of a rank's part in the whole. With fewer key-value heads than ranks they
// are repeated; the head's last rows may lie past the vocabulary and are zero.
int64_t PartBegin(const ModelSpec& spec, const Sharding& sharding, const WeightId& id,
                  int64_t rank);

// How the ranks of a model divide it.
Sharding ShardingOf(const RankPlace& place);

// The part of a model that one rank computes: the layers of its stage, of them its heads and
// neurons, of the first stage its rows of the embedding, and of the last one those of the head,
// which is no longer tied. Every rank of a stage has the whole stream. A rank without a stage has
// no layers. INVALID_ARGUMENT and UNIMPLEMENTED name what cannot be split.
Result<ModelSpec> RankSpec(const ModelSpec& whole, const RankPlace& place);

// The first layer of a stage. If the layers do not divide evenly, earlier stages have one more. For
// stage == pp_size it is the number of layers.
int64_t FirstLayer(const ModelSpec& spec, const Sharding& sharding, int64_t stage);
// The stage that holds a weight: the first has the embedding and what is added to it, the last the
// final norm and the head.
int64_t StageOf(const ModelSpec& spec, const Sharding& sharding, const WeightId& id);

}  // namespace tandem
