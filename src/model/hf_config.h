// Readers of the fields that the configs of many families share, in a Hugging Face config.json or
// in the config of a TensorRT-LLM checkpoint. Pure functions: each sets or returns part of a spec
// and reports anything unsupported as a fault of the object it reads, with the key.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/json_fields.h"
#include "model/spec.h"
#include "tensor/dtype.h"

namespace tandem {

// Records that the key's value is not supported; `why` is appended: "; it must be silu".
void Refuse(const JsonFields& config, std::string_view key, std::string_view why);

// The type of weights and activations: "dtype" (transformers 5) or "torch_dtype" (4). Without
// either it is float32, as in transformers.
DType ReadDType(const JsonFields& config);

// Rotary positions of heads of `head_dim`: rope_theta, rope_scaling and partial_rotary_factor side
// by side (transformers 4), or inside rope_parameters (5). `max_positions`: the config's, which
// linear, dynamic and yarn scaling stretch.
RopeSpec ReadRope(const JsonFields& config, int64_t head_dim, int64_t& max_positions,
                  double default_theta = RopeSpec().theta);

// The same for every layer of the spec.
void ReadRopes(const JsonFields& config, ModelSpec& spec);

// The same for two kinds of layers, once their windows are read: rope_parameters has an object for
// each kind (transformers 5), or layers with a window turn by `bases.local` and are not scaled (4).
struct RopeBases {
  double whole = RopeSpec().theta;  // where rope_theta is absent
  double local = RopeSpec().theta;
};
void ReadRopesByKind(const JsonFields& config, const RopeBases& bases, ModelSpec& spec);

// The object that describes the rotation beyond its base, or nothing.
std::optional<JsonFields> RopeObject(const JsonFields& config);
// How much yarn makes queries and keys larger each (arXiv 2309.00071, section 3.4), with DeepSeek's
// factor `scale`.
double YarnScale(double factor, double scale);

// The keys rotary_base, rotary_dim, rotary_scaling_type and rotary_scaling_factor (ConfigOptions),
// which go over what a family has read.
void ReadRotaryOptions(const JsonFields& config, ModelSpec& spec);

// The object that describes rotary scaling: rope_scaling, rope_parameters or rotary_scaling.
// Stretches `max_positions` by the factor of linear and dynamic scaling. `original_positions`:
// the trained context of the other kinds, used when the object does not give it.
RopeScaling ReadRopeScaling(const JsonFields& rope, int64_t original_positions,
                            int64_t& max_positions);

// Under which keys a family's config has the sizes of its layers, and what an absent one means.
struct SizeKeys {
  std::string_view vocab = "vocab_size";
  std::string_view hidden = "hidden_size";
  std::string_view layers = "num_hidden_layers";
  std::string_view heads = "num_attention_heads";
  std::string_view kv_heads = "num_key_value_heads";  // absent: as many as heads
  std::string_view head_dim = "head_dim";             // absent: hidden / heads
  std::string_view intermediate = "intermediate_size";
  std::string_view positions = "max_position_embeddings";
  std::string_view epsilon = "rms_norm_eps";
  // 0: the key must be there, or its absence means what is said above.
  int64_t default_vocab = 0;
  int64_t default_heads = 0;
  int64_t default_kv_heads = 0;
  int64_t default_head_dim = 0;
  int64_t default_positions = 2048;
  double default_epsilon = 1e-6;
  bool default_tied = false;
  bool default_intermediate = false;  // 4 * hidden; else the key must be there
};
// Sets the sizes, the type, the norm's epsilon and whether the head is tied, and makes the layers
// alike: causal attention without positions, and a gated MLP with SiLU. A family changes what it
// has otherwise.
void ReadSizes(const JsonFields& config, const SizeKeys& keys, ModelSpec& spec);
// Applies `change` to every layer.
void ForEachLayer(ModelSpec& spec, const std::function<void(LayerSpec& layer)>& change);

// The function that `key` names as transformers does: "silu", "gelu", "gelu_new", ...
ops::Activation ReadActivation(const JsonFields& config, std::string_view key,
                               std::string_view fallback);

// A number of experts or groups as routing takes it: 0, which ValidateSpec refuses with its name,
// if it is out of range.
int32_t ReadCount(const JsonFields& config, std::string_view key, int64_t fallback);

// Which layers have experts, as Qwen's configs say it: every decoder_sparse_step-th that is not one
// of mlp_only_layers.
bool IsSparseLayer(const JsonFields& config, int64_t layer);

// Gives layers experts as the configs of DeepSeek and those after it say it: n_routed_experts of
// moe_intermediate_size, beside n_shared_experts of the same size in one MLP, from the layer
// first_k_dense_replace on, every moe_layer_freq-th. `scoring` is used where scoring_func is
// absent.
void ReadRoutedExperts(const JsonFields& config, std::string_view scoring, ModelSpec& spec);

// Attention windows: layer_types where it is given; else sliding_window, if use_sliding_window does
// not turn it off, for every layer from max_window_layers on.
void ReadWindows(const JsonFields& config, ModelSpec& spec);

// layer_types where it is given; else sliding_window for all layers but every n-th, where
// sliding_window_pattern or `every` is n.
void ReadInterleavedWindows(const JsonFields& config, int64_t every, int64_t default_window,
                            ModelSpec& spec);

// As many equal layers as the key says.
std::vector<LayerSpec> RepeatLayer(const JsonFields& config, std::string_view key,
                                   const LayerSpec& layer);

// A token id or a list of them. Ids outside the vocabulary are never produced and are left out:
// some configs write -1 for "none".
std::vector<int32_t> ReadIds(const JsonFields& config, std::string_view key, int64_t vocab_size);

}  // namespace tandem
