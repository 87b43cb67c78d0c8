// ModelSpec: everything the forward pass must know about a model, and nothing about where it came
// from (no Hugging Face or TensorRT-LLM field names). A pure value; families/families.h makes it
// from a config, and it round-trips through JSON for the engine folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/quant_scheme.h"

namespace tandem {

class JsonFields;

// Far above every published model, low enough that products of three sizes fit in 63 bits.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxPositions = int64_t{1} << 28;

struct RopeScaling {
  enum class Kind { kNone, kLinear, kDynamic, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  // The trained context, before scaling. Linear and dynamic scaling stretch it by the factor.
  int64_t original_max_positions = 0;
  bool operator==(const RopeScaling&) const = default;
};

struct RopeSpec {
  double theta = 10000.0;
  RopeScaling scaling;
  bool operator==(const RopeSpec&) const = default;
};

// Root mean square norms.
struct NormSpec {
  double epsilon = 1e-5;
  bool operator==(const NormSpec&) const = default;
};

// Causal attention over the whole context; every dimension of a head is rotated.
struct AttentionSpec {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool bias = false;  // of q, k, v and the output
  RopeSpec rope;

  // Rows of the weights of q, of k (or v), and of all three.
  int64_t query_rows() const { return num_heads * head_dim; }
  int64_t kv_rows() const { return num_kv_heads * head_dim; }
  int64_t qkv_rows() const { return query_rows() + 2 * kv_rows(); }
  bool operator==(const AttentionSpec&) const = default;
};

// down(silu(gate(x)) * up(x)).
struct MlpSpec {
  int64_t intermediate_size = 0;
  bool bias = false;  // of gate, up and down
  bool operator==(const MlpSpec&) const = default;
};

// x += attention(norm(x)); x += mlp(norm(x)).
struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
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

struct ModelSpec {
  std::string family;          // row of the families table: "llama"
  std::string architecture;    // as the config named it: "LlamaForCausalLM"
  DType dtype = DType::kBF16;  // of weights and activations
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_positions = 0;  // the longest useful context, after scaling of positions
  NormSpec norm;
  std::vector<LayerSpec> layers;
  bool tied_head = false;
  // Of the layers' products; everything else is of `dtype`, but for the exceptions.
  QuantScheme quantization;
  std::vector<SchemeException> exceptions;
  // Keys and values have calibrated scales of each layer and head, for a cache of this type: fp8 or
  // int8. A cache in fp8 takes those for int8 too.
  std::optional<DType> cache_scales;
  std::vector<int32_t> bos_ids;
  std::vector<int32_t> eos_ids;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  const LayerSpec& layer(int64_t index) const { return layers[static_cast<size_t>(index)]; }
  // The context served unless another is asked for: max_positions, or the trained context if the
  // positions scale dynamically, because one base serves all prompts and a larger one would change
  // the short ones too.
  int64_t DefaultPositions() const;
  // Bytes of the keys and values of one token over all layers.
  int64_t KvBytesPerToken(DType kv_dtype) const;
  bool operator==(const ModelSpec&) const = default;
};

// Checks the numbers against each other and against sane bounds; names the field at fault.
Status ValidateSpec(const ModelSpec& spec);
// FAILED_PRECONDITION if the model lacks the scales that a cache of this type needs: elements of
// int8 have no range of their own, so that unscaled most of them would be 0 or the largest one.
Status CheckCacheScales(const ModelSpec& spec, DType cache);
std::string SpecToJson(const ModelSpec& spec);
Result<ModelSpec> SpecFromJson(const std::string& text);
// Reads what SpecToJson writes of the quantization: the keys "quantization" and "exceptions".
void ReadSchemes(const JsonFields& json, ModelSpec& spec);

}  // namespace tandem
