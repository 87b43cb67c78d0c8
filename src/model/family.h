// Family: how a Hugging Face folder describes one kind of model. Data and pure functions; a
// new family is a file under families/ that fills one of these, and a row in families.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/json_fields.h"
#include "model/spec.h"
#include "model/tensor_source.h"

namespace tandem {

// What TensorRT-LLM's checkpoints of a family leave to its code: their keys describe one layer for
// all, with a norm before each block and a gated MLP.
struct CheckpointForm {
  std::string_view architecture = {};  // empty: such checkpoints are neither read nor written
  std::string_view qwen_type = {};     // a key that its code requires
  bool qkv_bias = false;               // where the key attn_bias is absent
  bool out_bias = true;                // there is one where q, k and v have one
  HeadNorm head_norm = HeadNorm::kNone;
};

struct Family {
  std::string_view name;  // "llama"
  // As config.json calls it; an engine calls it by the first.
  std::span<const std::string_view> architectures;
  // Sets what the config says of the layers and the norms. The names, the ids and the quantization
  // are read for it. Faults are the config's.
  void (*read)(const JsonFields& config, ModelSpec& spec);
  // Where a folder keeps a tensor of StoredWeights.
  TensorSource (*source)(const ModelSpec& spec, const WeightId& id) = StandardSource;
  // Whether a config with one of these architectures is of this family: where several share a name.
  bool (*claims)(const JsonFields& config) = nullptr;
  // The member of ConfigOptions that names a model of this family, and its values here; empty:
  // none.
  std::string_view version_option = {};
  std::span<const std::string_view> versions = {};
  // At the head of the names, but left out in some folders: "transformer.".
  std::string_view optional_prefix = {};
  CheckpointForm checkpoint = {};
};

}  // namespace tandem
