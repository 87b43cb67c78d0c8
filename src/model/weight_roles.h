// The table of weights: one row for each weight, with everything that readers, loaders, sums of
// bytes, sharding, dummies and checkpoints must know of it. They loop over the rows, so a new
// weight is a new row and the block that uses it. Data and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/spec.h"
#include "tensor/tensor.h"

namespace tandem {

// The weights of a decoder under their canonical names, in the order of a forward pass.
enum class WeightRole : uint8_t {
  kEmbedding,
  kInputNorm,
  kQuery,
  kKey,
  kValue,
  kAttentionOut,
  kPostNorm,
  kGate,
  kUp,
  kDown,
  kFinalNorm,
  kHead,
};

// What may be stored of a weight.
enum class WeightPart : uint8_t {
  kWeight,
  kBias,
  kScale,       // quantized: what an element of a row is multiplied with
  kInputScale,  // static inputs: what an input is divided by before it is rounded
  kCacheScale,  // of keys or values: what an element is multiplied with where the cache is in fp8
};
constexpr bool IsScale(WeightPart part) {
  return part != WeightPart::kWeight && part != WeightPart::kBias;
}

// One tensor of a model.
struct WeightId {
  WeightRole role = WeightRole::kEmbedding;
  int64_t layer = 0;  // 0 for a weight of the whole model
  WeightPart part = WeightPart::kWeight;
  auto operator<=>(const WeightId&) const = default;
};

// Products that share their inputs are packed one below the other and computed as one.
enum class WeightPack : uint8_t { kNone, kQkv, kAttentionOut, kGateUp, kDown, kHead };

// What a product multiplies. One calibrated scale serves all products of a group.
enum class InputGroup : uint8_t { kNone, kAttention, kAttentionOut, kMlp, kMlpOut, kHead };

// What tensor-parallel ranks share out, and along which side of the weight.
enum class ShardRule : uint8_t {
  kWhole,           // every rank has all of it
  kHeadRows,        // rows, by query heads
  kKvHeadRows,      // rows, by key-value heads, repeated where there are more ranks than heads
  kHeadColumns,     // columns, by query heads; the products are summed over the ranks
  kNeuronRows,      // rows, evenly
  kNeuronColumns,   // columns, evenly; the products are summed over the ranks
  kVocabularyRows,  // rows, rounded up: the last rank's are padded
  kEmbedding,       // as the Sharding asks: whole, or split along either side
};

// What a dummy model fills the weight with; see dummy_weights.h.
enum class DummyValues : uint8_t {
  kEmbedding,   // rows of the token map
  kHead,        // rows of the token map, each moved on by one step
  kOnes,        // a norm that changes nothing
  kLayerNorm,   // a norm ahead of a layer's products: ones, but tiny in float16
  kProduct,     // random
  kScores,      // random, such that scores of attention are of some units
  kToResidual,  // random, such that what is added to the residual is only noise
};

struct WeightRow {
  using Size = int64_t (*)(const ModelSpec& spec, int64_t layer);
  using Test = bool (*)(const ModelSpec& spec, int64_t layer);

  WeightRole role = WeightRole::kEmbedding;
  bool per_layer = true;
  // Names without the suffix of the part; a layer's weights have the layer's prefix before them.
  std::string_view hf_name;             // where a family's own source does not say otherwise
  std::string_view trtllm_name;         // weights of one name are fused, one below the other
  Size rows = nullptr;                  // output features, or elements of a vector
  Size columns = nullptr;               // input features; null for a vector
  Test present = nullptr;               // null: always
  Test bias = nullptr;                  // null: never
  WeightPack pack = WeightPack::kNone;  // kNone: kept as it is stored
  InputGroup input = InputGroup::kNone;
  // The weight before it (a norm or a product) that can take over a scale of this one's inputs,
  // channel by channel, so that SmoothQuant and AWQ need no other graph.
  std::optional<WeightRole> absorber = std::nullopt;
  ShardRule shard = ShardRule::kWhole;
  bool quantizable = false;
  bool cached = false;  // its outputs are what the cache keeps
  DummyValues dummy = DummyValues::kProduct;
};

// Every role once, in the order of WeightRole. The rows of a layer stand together.
std::span<const WeightRow> WeightRows();
const WeightRow& RowOf(WeightRole role);

// Every tensor that a file of this model holds, in the order of a forward pass: a head that is tied
// to the embedding is none.
std::vector<WeightId> StoredWeights(const ModelSpec& spec);
// The one of them that holds a tensor: of a tied head, the embedding.
WeightId StoredId(const ModelSpec& spec, const WeightId& id);

// [rows, columns] of a matrix, [size] of a vector, [rows] of a bias or of scales, [1] of an input
// scale, [key-value heads] of cache scales.
Shape WeightShape(const ModelSpec& spec, const WeightId& id);
// The spec's type or, where weights are quantized, that of an element; scales are fp32.
DType WeightDType(const ModelSpec& spec, const WeightId& id);
// The parts that the spec gives this weight, itself first; none where the layer has no such weight.
std::vector<WeightPart> WeightParts(const ModelSpec& spec, WeightRole role, int64_t layer);
bool HasBias(const ModelSpec& spec, WeightRole role, int64_t layer);
// How the weight is stored.
QuantScheme SchemeOf(const ModelSpec& spec, WeightRole role, int64_t layer);

// The roles that are packed into one product, in their order; empty where the layer has none. A
// tied head packs the embedding.
std::vector<WeightRole> RolesOf(const ModelSpec& spec, WeightPack pack, int64_t layer);
// The weight that can take over a scale of this one's inputs, where it has as many outputs.
std::optional<WeightRole> AbsorberOf(const ModelSpec& spec, WeightRole role, int64_t layer);

// Elements of weights and biases.
int64_t NumParameters(const ModelSpec& spec);
// Bytes read in one decode step of a model kept as it is stored, the embedding look-up not counted.
int64_t StepWeightBytes(const ModelSpec& spec);

}  // namespace tandem
