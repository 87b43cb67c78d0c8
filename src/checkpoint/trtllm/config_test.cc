// Which models are written in TensorRT-LLM's words, and that either form gives the model back.
#include "checkpoint/trtllm/config.h"

#include <gtest/gtest.h>

#include <functional>

#include "model/testing/configs.h"

namespace tandem {
namespace {

constexpr const char* kDescription = "\"tandem_model\"";

// The config as text, which reads as the same model.
std::string Written(const ModelSpec& spec) {
  std::string text = CheckpointConfigToJson({.spec = spec, .sharding = {.tp_size = 2}});
  const auto json = JsonFields::Parse(text);
  const auto read = ReadCheckpointConfig(*json);
  EXPECT_TRUE(read.ok() && read->spec == spec) << text << "\n" << read.status().message();
  return text;
}

TEST(CheckpointConfig, LlamasAreWrittenInTheWordsOfTensorRtLlm) {
  for (const char* extra :
       {"", R"("attention_bias": true, "mlp_bias": true)", R"("head_dim": 32)",
        R"("tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": [2, 7])",
        R"("num_key_value_heads": 2, "rope_theta": 123456.7, "rms_norm_eps": 3e-6)",
        R"("rope_scaling": {"type": "linear", "factor": 2.5})",
        R"("rope_scaling": {"type": "dynamic", "factor": 3.3}, "max_position_embeddings": 1000)",
        R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": false,
                            "original_max_position_embeddings": 1024})",
        R"("rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1.1],
                            "long_factor": [1, 2, 3, 4, 5, 6, 7, 8.8], "factor": 2.0,
                            "original_max_position_embeddings": 1024})",
        R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"})"}) {
    EXPECT_EQ(Written(MustParse(Small(extra))).find(kDescription), std::string::npos) << extra;
  }
  const std::string text = Written(MustParse(kLlama32));
  EXPECT_EQ(text.find(kDescription), std::string::npos);
  EXPECT_NE(text.find("\"num_attention_heads\": 32"), std::string::npos) << text;
}

// What their keys leave to the code, as its own converters take it.
TEST(CheckpointConfig, FamiliesWithTheLayersOfALlamaAreToo) {
  const auto read = [](const std::string& architecture) {
    const auto json = JsonFields::Parse(R"({"architecture": ")" + architecture + R"(",
        "dtype": "float16", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 512})");
    const auto config = ReadCheckpointConfig(*json);
    EXPECT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(Written(config->spec).find(kDescription), std::string::npos) << architecture;
    return config->spec.layer(0).attention;
  };
  for (const char* architecture :
       {"MistralForCausalLM", "InternLMForCausalLM", "InternLM2ForCausalLM"}) {
    EXPECT_FALSE(read(architecture).qkv_bias);
  }
  const AttentionSpec qwen2 = read("Qwen2ForCausalLM"), qwen3 = read("Qwen3ForCausalLM");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.out_bias);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_norm, HeadNorm::kHead);
  EXPECT_NE(Written(MustParse(Small(R"("architectures": ["Qwen2ForCausalLM"])")))
                .find("\"qwen_type\": \"qwen2\""),
            std::string::npos);
}

TEST(CheckpointConfig, ANumberThatCannotBeIsNamedByItsOwnKey) {
  const std::string text = Written(MustParse(Small("")));
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_size", "intermediate_size", "norm_epsilon",
                          "max_position_embeddings", "rotary_base"}) {
    for (const int value : {0, -1}) {
      const std::string begin = '"' + std::string(key) + "\": ";
      const size_t at = text.find(begin) + begin.size();
      std::string wrong = text;
      wrong.replace(at, text.find_first_of(",\n", at) - at, std::to_string(value));
      const auto json = JsonFields::Parse(wrong);
      ASSERT_TRUE(json.ok()) << wrong;
      const auto read = ReadCheckpointConfig(*json);
      ASSERT_FALSE(read.ok()) << key << ": " << value;
      EXPECT_NE(read.status().message().find(key), std::string::npos)
          << key << ": " << read.status().message();
    }
  }
}

// Members of a spec that no Llama has, each of which those words cannot say.
TEST(CheckpointConfig, AModelThatTheseWordsDoNotSayIsDescribed) {
  const std::function<void(ModelSpec&)> changes[] = {
      [](ModelSpec& spec) { spec.layers[0].attention.out_bias = true; },
      [](ModelSpec& spec) { spec.layers[1].attention.window = 5; },
      [](ModelSpec& spec) { spec.layers[1].mlp.intermediate_size *= 2; },
      [](ModelSpec& spec) {
        for (LayerSpec& layer : spec.layers) layer.attention.rope.dim = 8;
      },
      [](ModelSpec& spec) {
        for (LayerSpec& layer : spec.layers) layer.attention.rope.interleaved = true;
      },
      [](ModelSpec& spec) {
        for (LayerSpec& layer : spec.layers) layer.mlp.activation = ops::Activation::kGelu;
      },
      [](ModelSpec& spec) {
        for (LayerSpec& layer : spec.layers) layer.attention.scale = 0.5;
      },
      [](ModelSpec& spec) { spec.norm.weight_offset = 1.0; },
      [](ModelSpec& spec) { spec.logit_cap = 30.0; },
      [](ModelSpec& spec) { spec.embedding_scale = 8.0; },
      [](ModelSpec& spec) { spec.embedding_norm = true; },
      [](ModelSpec& spec) { spec.head_bias = true; },
      [](ModelSpec& spec) { spec.head_normed = true; },
  };
  const ModelSpec llama = MustParse(Small(""));
  for (size_t i = 0; i < std::size(changes); ++i) {
    SCOPED_TRACE(i);
    ModelSpec spec = llama;
    changes[i](spec);
    ASSERT_NE(spec, llama);
    EXPECT_NE(Written(spec).find(kDescription), std::string::npos);
  }
  EXPECT_NE(Written(MustParse(DeepSeek())).find(kDescription), std::string::npos);
}

}  // namespace
}  // namespace tandem
