// ModelSpec: everything the forward pass must know about a model, and nothing about where it came
// from (no Hugging Face or TensorRT-LLM field names). A pure value; families/families.h makes it
// from a config, and it round-trips through JSON for the engine folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"
#include "tensor/dtype.h"
#include "tensor/quant_scheme.h"

namespace tandem {

class JsonFields;

// Far above every published model, low enough that products of three sizes fit in 63 bits.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxPositions = int64_t{1} << 28;
constexpr int64_t kMaxWidth = int64_t{1} << 20;  // of a row between two products
constexpr int64_t kMaxHeadDim = 1024;

struct RopeScaling {
  enum class Kind { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope, kNtkSteps };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  // The trained context, before scaling. Linear and dynamic scaling stretch it by the factor.
  int64_t original_max_positions = 0;
  double beta_fast = 32.0;  // yarn: turns in the trained context beyond which nothing changes
  double beta_slow = 1.0;   // yarn: turns below which positions are divided by the factor
  bool truncate = true;     // yarn: the bounds between the two are whole numbers
  // Yarn and longrope: factor of cosine and sine.
  double attention_factor = 1.0;
  // Longrope: divisors of the frequencies, one for each pair, of contexts up to the trained one and
  // beyond.
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};
  bool operator==(const RopeScaling&) const = default;
};

// Rotary positions of the first `dim` elements of each head: element i turns with i + dim / 2 or,
// if `interleaved`, element 2 i with 2 i + 1. Rows of q and k are arranged at load so that ops
// know only the first.
struct RopeSpec {
  int64_t dim = 0;  // 0: none
  bool interleaved = false;
  double theta = 10000.0;
  RopeScaling scaling = {};
  // Each half of a head turns on its own, with `dim` elements each: the first by where the token
  // stands, the second by its second position.
  bool halves = false;
  bool fp16_frequencies = false;  // rounded to fp16
  bool operator==(const RopeSpec&) const = default;
};

// A prefix mask (GLM): the tokens before the first `start_id` of the prompt see each other both
// ways, and all others see them. Later tokens attend causally. All share one position: that of the
// first `mask_ids` entry that the prompt contains. Their second positions count 1, 2, ...; those of
// the tokens before them are 0.
struct PrefixSpec {
  int32_t start_id = -1;  // -1: attention is causal
  std::vector<int32_t> mask_ids = {};
  bool operator==(const PrefixSpec&) const = default;
};

// A factor of queries that grows with their position p, because the softmax over a longer context
// spreads wider.
struct QueryGrowth {
  enum class Kind : uint8_t {
    kNone,
    kLogN,   // max(1, log(p + 1) / log(length))
    kSteps,  // 1 + factor * log(1 + floor((p + 1) / length))
  };
  Kind kind = Kind::kNone;
  int64_t length = 0;
  double factor = 0.0;
  bool operator==(const QueryGrowth&) const = default;
};

// All norms of the residual stream; ops::Norm has the formula.
struct NormSpec {
  using Kind = ops::Norm::Kind;
  Kind kind = Kind::kRms;
  double epsilon = 1e-5;
  double weight_offset = 0.0;
  bool bias = false;
  bool operator==(const NormSpec&) const = default;
};

// Norms of queries and keys, between their product and the rotation.
enum class HeadNorm : uint8_t {
  kNone,
  kHead,        // each head by itself, all with one weight of head_dim elements
  kAllHeads,    // the heads together
  kHeadsOwn,    // each head by itself with a weight of its own
  kUnweighted,  // each head by itself, without a weight
};

// Multi-head latent attention (arXiv 2405.04434). Of a token the cache holds one key for all heads:
// a normed latent, from which a head's weights would make its own key and value, then the elements
// that turn. A head's key weights are multiplied into its queries instead, so that attention is
// over the latents themselves, and its value weights with the latent that attention gives.
struct LatentSpec {
  int64_t rank = 0;        // elements of a latent; 0: the layer has keys and values
  int64_t query_rank = 0;  // queries are a product of a normed latent of their own; 0: of the row
  int64_t key_dim = 0;     // of a head's query and key, before the elements that turn
  int64_t value_dim = 0;   // of a head
  double norm_epsilon = 1e-6;  // of both latents
  bool operator==(const LatentSpec&) const = default;
};

// Causal attention.
struct AttentionSpec {
  int64_t num_heads = 0;
  // Of the cache: with latents one head of latent.rank + rope.dim elements.
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  LatentSpec latent = {};
  bool qkv_bias = false;
  bool out_bias = false;
  RopeSpec rope;
  HeadNorm head_norm = HeadNorm::kNone;
  double scale = 0.0;     // of scores; 0: 1 / sqrt(head_dim), without latents alone
  double soft_cap = 0.0;  // scores become soft_cap * tanh(score / soft_cap); 0: no
  // ALiBi (arXiv 2108.12409): factor of the slopes that the number of heads gives; 0: no.
  double alibi_scale = 0.0;
  int64_t window = 0;  // a row sees the last `window` keys, itself among them; 0: all before it
  int64_t chunk = 0;   // a row sees those from the last multiple of `chunk` on; 0: likewise
  bool sinks = false;  // each head has a score that takes its share of the softmax without a value
  QueryGrowth growth = {};

  // Keys that a row sees at most, itself among them, by window and chunk; 0: all before it.
  int64_t reach() const {
    return window == 0 || chunk == 0 ? window + chunk : std::min(window, chunk);
  }
  bool has_latents() const { return latent.rank > 0; }
  // Elements of a head of q as its weights give it.
  int64_t query_dim() const { return has_latents() ? latent.key_dim + rope.dim : head_dim; }
  int64_t value_dim() const { return has_latents() ? latent.value_dim : head_dim; }
  // Rows of the weights of q, of k (or v), and of all that there are of the three.
  int64_t query_rows() const { return num_heads * query_dim(); }
  int64_t kv_rows() const { return num_kv_heads * head_dim; }
  int64_t qkv_rows() const { return query_rows() + (has_latents() ? 0 : 2 * kv_rows()); }
  // Columns of what Ops::PagedAttention takes and gives.
  int64_t attending_columns() const { return has_latents() ? num_heads * head_dim : qkv_rows(); }
  int64_t attended_columns() const { return num_heads * (has_latents() ? latent.rank : head_dim); }
  // Columns of the output's weights.
  int64_t out_columns() const { return num_heads * value_dim(); }
  // Elements of the cache of one token.
  int64_t cached_elements() const { return (has_latents() ? 1 : 2) * kv_rows(); }
  bool operator==(const AttentionSpec&) const = default;
};

// down(activation(gate(x)) * up(x)) or, not gated, down(activation(up(x))).
struct MlpSpec {
  int64_t intermediate_size = 0;
  ops::Activation activation = ops::Activation::kSilu;
  bool gated = true;
  bool bias = false;  // of gate, up and down
  bool operator==(const MlpSpec&) const = default;
};

// Experts: MLPs of which a router chooses some for every row.
struct MoeSpec {
  int64_t num_experts = 0;  // 0: the layer has none
  // Of a rank that has some of them, from routing.first on; 0: all.
  int64_t some_experts = 0;
  MlpSpec expert;      // each of them
  double limit = 0.0;  // of Activation::kClampedSwiglu
  ops::RoutingRule routing;
  bool router_bias = false;
  bool correction = false;   // the router's scores have a correction, for the choice alone
  bool shared_gate = false;  // LayerSpec::mlp is multiplied by the sigmoid of a product of the row
  bool scales_inputs = false;  // a row is multiplied by its weight before an expert, not after

  // Those whose weights there are.
  int64_t experts_here() const { return some_experts > 0 ? some_experts : num_experts; }
  bool operator==(const MoeSpec&) const = default;
};

// How a layer adds to the residual stream x.
enum class Residual : uint8_t {
  kPreNorm,        // x += attention(norm(x)); x += mlp(norm2(x))
  kSandwich,       // x += norm2(attention(norm(x))); x += norm4(mlp(norm3(x)))
  kPostNorm,       // x += norm(attention(x)); x += norm2(mlp(x))
  kParallel,       // n = norm(x); x += attention(n) + mlp(n)
  kParallelNorms,  // x += attention(norm(x)) + mlp(norm2(x))
  kNormed,         // n = norm(x); x = alpha n + attention(n); m = norm2(x); x = alpha m + mlp(m)
};

struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;  // beside experts: of all rows (shared experts), of no neurons without
  MoeSpec moe;
  Residual residual = Residual::kPreNorm;
  double alpha = 1.0;  // of kNormed
  bool operator==(const LayerSpec&) const = default;
};

enum class WeightRole : uint8_t;  // weight_roles.h

// A weight that is stored under another scheme than its neighbours: a layer that was left as it
// was, or a quantized head.
struct SchemeException {
  WeightRole role{};
  int64_t layer = 0;  // 0 for a weight of the whole model
  QuantScheme scheme;
  bool operator==(const SchemeException&) const = default;
};

// Whose part of a model the sizes of a spec are: some of the layers, which are split into stages in
// their order, and a share of the heads and neurons of each. The first stage has the embedding, the
// last one the final norm and the head. An engine may have ranks that hold nothing of the model and
// only get its logits: a draft on a GPU of its own has nothing of the target, nor the others
// anything of the draft.
struct RankPlace {
  static constexpr int64_t kNoStage = -1;

  int64_t rank = 0;   // in its stage
  int64_t ranks = 1;  // of a stage; 1: they are not split
  int64_t stage = 0;  // kNoStage: this rank holds nothing of the model
  int64_t stages = 1;
  // Some ranks of the engine hold nothing of the model.
  bool apart = false;
  int64_t first = 0;  // the number, among the engine's ranks, of the first that holds some of it
  // Each rank of a stage has some experts, instead of some neurons of every expert.
  bool whole_experts = false;

  bool is_whole() const { return ranks == 1 && stages == 1 && !apart; }
  bool has_layers() const { return stage != kNoStage; }
  bool is_first_stage() const { return stage == 0; }
  bool is_last_stage() const { return stage == stages - 1; }
  // Not every rank of the engine has the logits when its own layers are done.
  bool shares_logits() const { return stages > 1 || apart; }
  // The first of the ranks that have.
  int64_t first_with_logits() const { return first + (stages - 1) * ranks; }
  bool operator==(const RankPlace&) const = default;
};

struct ModelSpec {
  std::string family;          // row of the families table: "llama"
  std::string architecture;    // as the config named it: "LlamaForCausalLM"
  DType dtype = DType::kBF16;  // of weights and activations
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_positions = 0;  // the longest useful context, after scaling of positions
  NormSpec norm;
  std::vector<LayerSpec> layers;
  // Each kind of layer that only other stages of the model have: what a batch brings with it and
  // how long blocks are kept is the same for all stages. No part of SpecToJson.
  std::vector<LayerSpec> other_layers;
  int64_t position_rows = 0;         // learned positions, added to the embedding; 0: none
  int64_t second_position_rows = 0;  // the same for second positions
  PrefixSpec prefix;
  double embedding_scale = 1.0;  // of the embedding, rounded to `dtype` before
  bool embedding_norm = false;   // the embedding is normed before the first layer
  bool tied_head = false;
  bool head_bias = false;
  bool head_normed = false;  // each row of the head is divided by its length
  double logit_scale = 1.0;
  double logit_cap = 0.0;  // logits become logit_cap * tanh(logit / logit_cap); 0: no
  // Of the layers' products; everything else is of `dtype`, but for the exceptions.
  QuantScheme quantization;
  std::vector<SchemeException> exceptions;
  // Keys and values have calibrated scales of each layer and head, for a cache of this type: fp8 or
  // int8. A cache in fp8 takes those for int8 too.
  std::optional<DType> cache_scales;
  RankPlace place;  // no part of SpecToJson: what is stored is the model
  std::vector<int32_t> bos_ids;
  std::vector<int32_t> eos_ids;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  // This rank's rows of the embedding and of the head. They follow those of the ranks before it;
  // rows past the vocabulary are zeros.
  int64_t vocab_rows() const { return (vocab_size + place.ranks - 1) / place.ranks; }
  int64_t first_vocab_row() const { return place.rank * vocab_rows(); }
  bool has_latents() const;         // in any layer
  bool has_experts() const;         // likewise
  bool HasSecondPositions() const;  // on any stage
  bool has_experts(int64_t index) const { return layer(index).moe.num_experts > 0; }
  const LayerSpec& layer(int64_t index) const { return layers[static_cast<size_t>(index)]; }
  // The context served unless another is asked for: max_positions, or the trained context if the
  // positions scale dynamically, because one base serves all prompts and a larger one would change
  // the short ones too.
  int64_t DefaultPositions() const;
  // Bytes of the keys and values of one token over all layers.
  int64_t KvBytesPerToken(DType kv_dtype) const;
  bool operator==(const ModelSpec&) const = default;
};

// What messages call a field of a spec. `field` is its key in SpecToJson, with the object's key in
// front where several objects have it: "num_heads", "rope.theta", "moe.routing.scale".
using FieldNames = std::function<std::string(std::string_view field)>;
// The key itself.
std::string FieldKey(std::string_view field);

// Checks the numbers against each other and against sane bounds; names the field at fault.
Status ValidateSpec(const ModelSpec& spec, const FieldNames& name = FieldKey);
// FAILED_PRECONDITION if the model lacks the scales that a cache of this type needs: elements of
// int8 have no range of their own, so that unscaled most of them would be 0 or the largest one.
Status CheckCacheScales(const ModelSpec& spec, DType cache);
std::string SpecToJson(const ModelSpec& spec);
// "linear", as SpecToJson writes it.
std::string_view ScalingName(RopeScaling::Kind kind);
Result<ModelSpec> SpecFromJson(const std::string& text);
// The same of an object within another; faults are that object's.
ModelSpec ReadSpec(const JsonFields& json);
// Reads what SpecToJson writes of the quantization: the keys "quantization" and "exceptions".
void ReadSchemes(const JsonFields& json, ModelSpec& spec);

}  // namespace tandem
