// The table of weights: one row per weight, with everything that readers, loaders, byte counts,
// sharding, dummies and checkpoints must know about it. They loop over the rows, so a new weight is
// a new row and the block that uses it. Data and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"
#include "model/weight_parts.h"
#include "tensor/tensor.h"

namespace tandem {

// The weights of a decoder under their canonical names, in the order of a forward pass.
enum class WeightRole : uint8_t {
  kEmbedding,
  kPositions,  // learned, added to the embedding
  kSecondPositions,
  kEmbeddingNorm,
  kInputNorm,      // before attention or, in a post-norm layer, after it
  kQueryDown,      // to the latent of LatentSpec::query_rank
  kQueryDownNorm,  // of that latent
  kQuery,
  kKey,
  kValue,
  kLatent,       // of keys and values, then what turns of the key
  kLatentNorm,   // of the latent
  kLatentKey,    // from a latent to what does not turn of each head's key
  kLatentValue,  // from a latent to each head's value
  kQueryNorm,
  kKeyNorm,
  kSinks,  // scores of AttentionSpec::sinks
  kAttentionOut,
  kAttentionOutNorm,  // of what a sandwich's attention adds
  kPostNorm,          // before the MLP or, in a post-norm layer, after it
  kRouter,            // the scores of experts
  kRouterCorrection,  // is added to them for the choice
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,  // what the MLP beside experts is multiplied by
  kGate,
  kUp,
  kDown,
  kMlpOutNorm,  // of what a sandwich's MLP adds
  kFinalNorm,
  kHead,
  kCount,  // not a role
};

// One tensor of a model.
struct WeightId {
  WeightRole role = WeightRole::kEmbedding;
  int64_t layer = 0;  // 0 for a weight of the whole model
  WeightPart part = WeightPart::kWeight;
  int64_t expert = 0;  // 0 for a weight that is none of an expert
  auto operator<=>(const WeightId&) const = default;
};

// Products that share their inputs are stacked by rows and computed as one.
enum class WeightPack : uint8_t {
  kNone,
  kQueryDown,
  kQkv,
  kLatent,
  kLatentKey,
  kLatentValue,
  kAttentionOut,
  kRouter,
  kExpertGateUp,
  kExpertDown,
  kSharedGate,
  kGateUp,
  kDown,
  kHead,
};

// The input of a layer's product. `tandem quantize` calibrates each group once: one scale serves
// all its products, also where they are not packed (the experts of a layer). kExpertOut is an input
// of each expert's own.
enum class InputGroup : uint8_t { kNone, kAttention, kAttentionOut, kMlp, kMlpOut, kExpertOut };

// How a weight is split over tensor-parallel ranks, and along which side.
enum class ShardRule : uint8_t {
  kWhole,           // every rank has all of it
  kHeadRows,        // rows, by query heads
  kKvHeadRows,      // rows, by key-value heads, repeated where there are more ranks than heads
  kHeadColumns,     // columns, by query heads; the products are summed over the ranks
  kNeuronRows,      // rows, evenly
  kNeuronColumns,   // columns, evenly; the products are summed over the ranks
  kVocabularyRows,  // rows, rounded up: the last rank's are padded
  kEmbedding,       // according to Sharding: whole, or split along either side
};

// Values of the weight in a dummy model; see dummy_weights.h.
enum class DummyValues : uint8_t {
  kEmbedding,   // rows of the token map
  kHead,        // rows of the token map, each moved on by one step
  kZeros,       // adds nothing
  kOnes,        // a norm that changes nothing
  kLayerNorm,   // a norm before a layer's products: ones, but tiny in float16
  kProduct,     // random
  kScores,      // random, of a size that gives attention scores of a few units
  kToResidual,  // random, so small that the sum added to the residual is only noise
};

// Whether a weight is a product of each head by itself (Ops::HeadLinear), with the head's rows or
// their transpose. Backends keep those plain, however they are stored.
enum class HeadProducts : uint8_t { kNone, kRows, kTransposed };

struct WeightRow {
  using Size = int64_t (*)(const ModelSpec& spec, int64_t layer);
  using Test = bool (*)(const ModelSpec& spec, int64_t layer);

  WeightRole role = WeightRole::kEmbedding;
  bool per_layer = true;
  bool per_expert = false;
  // Names without the suffix of the part; a layer's weights have the layer's prefix before them,
  // and "{}" is an expert's number.
  std::string_view hf_name;             // used unless the family names another source
  std::string_view trtllm_name;         // weights with the same name are fused, stacked by rows
  Size rows = nullptr;                  // output features, or elements of a vector
  Size columns = nullptr;               // input features; null for a vector
  Test present = nullptr;               // null: always
  Test bias = nullptr;                  // null: never
  WeightPack pack = WeightPack::kNone;  // kNone: stored as it is
  InputGroup input = InputGroup::kNone;
  // The weight before this one (a norm or a product) that can take over a scale of each of this
  // one's inputs, unless what lies between them forbids it (quantize/layer_inputs.h): where
  // SmoothQuant and AWQ put the scales by which they move the range of inputs.
  std::optional<WeightRole> absorber = std::nullopt;
  ShardRule shard = ShardRule::kWhole;
  bool quantizable = false;
  HeadProducts by_head = HeadProducts::kNone;
  // Where the cache keeps its outputs: the suffix of their scale in a Hugging Face folder.
  std::string_view cache_scale = {};
  bool keeps_f32 = false;  // has this type whatever the model's is
  DummyValues dummy = DummyValues::kProduct;
};

// Every role once, in the order of WeightRole. The rows of a layer are contiguous.
std::span<const WeightRow> WeightRows();
const WeightRow& RowOf(WeightRole role);
// Whether it is a weight before or after all layers, which only that stage of a model has
// (RankPlace).
bool IsOfFirstStage(WeightRole role);
bool IsOfLastStage(WeightRole role);
// How many weights of this role a layer that has it holds: one, or one of each expert.
int64_t NumExpertsOf(const ModelSpec& spec, WeightRole role, int64_t layer);
// `name` with `number` in place of its first "{}", if it has one.
std::string WithNumber(std::string_view name, int64_t number);

// Every tensor that a file of this model holds, in the order of a forward pass; of a stage, those
// that it uses. A head tied to the embedding has none.
std::vector<WeightId> StoredWeights(const ModelSpec& spec);
// The stored tensor that holds a tensor: for a tied head, the embedding.
WeightId StoredId(const ModelSpec& spec, const WeightId& id);

// [rows, columns] of a matrix, [size] of a vector; of other parts according to their Extent.
Shape WeightShape(const ModelSpec& spec, const WeightId& id);
// The spec's type or, where weights are quantized, that of an element; scales are fp32.
DType WeightDType(const ModelSpec& spec, const WeightId& id);
// The parts of this weight according to the spec, itself first; none if the layer, or the stage,
// has no such weight.
std::vector<WeightPart> WeightParts(const ModelSpec& spec, WeightRole role, int64_t layer);
bool HasBias(const ModelSpec& spec, WeightRole role, int64_t layer);
// How the weight is stored; all experts alike.
QuantScheme SchemeOf(const ModelSpec& spec, WeightRole role, int64_t layer);

// The roles that are packed into one product, in order; empty if the layer has none. With a tied
// head the embedding is packed.
std::vector<WeightRole> RolesOf(const ModelSpec& spec, WeightPack pack, int64_t layer);

// Bytes of every tensor that a file of this model holds.
int64_t StoredBytes(const ModelSpec& spec);
// Number of elements of weights and biases.
int64_t NumParameters(const ModelSpec& spec);
// Those that one row is multiplied with: of experts, as many as it chooses.
int64_t NumActiveParameters(const ModelSpec& spec);
// Bytes read in one decode step of one row of a model stored as it is, without the embedding
// look-up: of experts, those of as many as a row chooses.
int64_t StepWeightBytes(const ModelSpec& spec);

}  // namespace tandem
