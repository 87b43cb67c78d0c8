// ModelSpec: everything the forward pass must know about a model, and nothing about where it came
// from (no Hugging Face or TensorRT-LLM field names). A pure value; families.h makes it from a
// config, and it round-trips through JSON for the engine folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/quant_scheme.h"
#include "tensor/dtype.h"

namespace tandem {

// Far above every published model, low enough that products of three sizes fit in 63 bits.
constexpr int64_t kMaxPositions = int64_t{1} << 28;

struct RopeScaling {
  enum class Kind { kNone, kLinear, kDynamic, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  // The context before it was stretched. Linear and dynamic scaling stretch it by their factor.
  int64_t original_max_positions = 0;
  bool operator==(const RopeScaling&) const = default;
};

struct ModelSpec {
  std::string family;          // row of the families table: "llama"
  std::string architecture;    // as the config named it: "LlamaForCausalLM"
  DType dtype = DType::kBF16;  // of weights and activations
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t max_positions = 0;  // the longest context that makes sense, after rope_scaling
  double norm_epsilon = 1e-5;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tied_head = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  QuantScheme quantization;  // of the layers' products; the rest is of `dtype`
  std::vector<int32_t> bos_ids;
  std::vector<int32_t> eos_ids;

  int64_t qkv_rows() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  // Keys and values of one token over all layers.
  int64_t KvBytesPerToken(DType kv_dtype) const {
    return num_layers * 2 * num_kv_heads * head_dim * static_cast<int64_t>(SizeOf(kv_dtype));
  }
  bool operator==(const ModelSpec&) const = default;
};

// Checks the numbers against each other and against sane bounds; names the field at fault.
Status ValidateSpec(const ModelSpec& spec);
std::string SpecToJson(const ModelSpec& spec);
Result<ModelSpec> SpecFromJson(const std::string& text);

}  // namespace tandem
