// Configs of models for tests. Pure functions.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "model/families/families.h"

namespace tandem {

// Llama-3.2-1B as transformers 4 writes it.
inline constexpr const char* kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})";

// A small config with `extra` inside; `extra` may repeat a key, the later one counts.
inline std::string Small(const std::string& extra) {
  return R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
             "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

inline ModelSpec MustParse(const std::string& config) {
  const auto spec = SpecFromHfConfig(config);
  EXPECT_TRUE(spec.ok()) << config << "\n" << spec.status().message();
  return spec.ok() ? *spec : ModelSpec{};
}

// DeepSeek-V3, with `extra` keys; a repeated one counts.
inline std::string DeepSeek(const std::string& extra = "") {
  return R"({"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280,
             "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
             "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
             "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
             "v_head_dim": 128, "first_k_dense_replace": 3, "moe_intermediate_size": 2048,
             "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
             "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
             "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1,
             "max_position_embeddings": 163840, "rope_theta": 10000, "torch_dtype": "bfloat16",
             "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                              "original_max_position_embeddings": 4096})" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

}  // namespace tandem
