// How the keys of a config.json are read in both versions' spellings, and what is refused of them.
#include "model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/testing/configs.h"

namespace tandem {
namespace {

// Llama-3.2-1B as transformers 5 writes it.
constexpr const char* kLlama32V5 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "dtype": "bfloat16", "eos_token_id": [128001, 128008, 128009],
  "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "pad_token_id": null, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_parameters": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                      "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
                      "rope_type": "llama3"},
  "tie_word_embeddings": true, "transformers_version": "5.0.0", "use_cache": true,
  "vocab_size": 128256})";

TEST(HfConfig, ReadsLlama32AsBothVersionsOfTransformersWriteIt) {
  const ModelSpec spec = MustParse(kLlama32);
  EXPECT_EQ(spec, MustParse(kLlama32V5));
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.dtype, DType::kBF16);
  const AttentionSpec& attention = spec.layers.front().attention;
  EXPECT_EQ(spec.num_layers(), 16);
  EXPECT_EQ(attention.head_dim, 64);
  EXPECT_EQ(attention.num_kv_heads, 8);
  EXPECT_EQ(spec.max_positions, 131072);
  EXPECT_EQ(attention.rope.theta, 500000.0);
  EXPECT_EQ(attention.rope.scaling,
            (RopeScaling{RopeScaling::Kind::kLlama3, 32.0, 1.0, 4.0, 8192}));
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.bos_ids, std::vector<int32_t>{128000});
  EXPECT_EQ(spec.eos_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(NumParameters(spec), 1235814400);
  EXPECT_EQ(StepWeightBytes(spec), int64_t{2} * 1235814400);
  EXPECT_EQ(spec.KvBytesPerToken(DType::kBF16), 32768);
}

TEST(HfConfig, FallsBackAsTransformersDoes) {
  const ModelSpec spec = MustParse(Small(""));
  const AttentionSpec& attention = spec.layers.front().attention;
  EXPECT_EQ(attention.num_kv_heads, 4);
  EXPECT_EQ(attention.head_dim, 16);
  EXPECT_EQ(spec.max_positions, 2048);
  EXPECT_EQ(spec.norm.epsilon, 1e-6);
  EXPECT_EQ(attention.rope.theta, 10000.0);
  EXPECT_EQ(spec.dtype, DType::kF32);
  EXPECT_FALSE(spec.tied_head);
  EXPECT_TRUE(spec.eos_ids.empty());
}

TEST(HfConfig, AcceptsWhatDoesNotChangeTheResult) {
  const char* const extras[] = {
      R"("head_dim": null, "num_key_value_heads": null, "rope_scaling": null)",
      R"("pretraining_tp": 4, "use_cache": false, "attention_dropout": 0.1, "unheard_of": {"a": []})",
      R"("rope_parameters": {"rope_type": "default", "rope_theta": 10000.0})",
      R"("rope_scaling": {"type": "default"})",
      R"("sliding_window": null, "quantization_config": null)",
      R"("sliding_window": 4096, "use_sliding_window": false)",
      R"("layer_types": ["full_attention", "full_attention"])",
      R"("hidden_act": "swish", "partial_rotary_factor": 1.0)",
      R"("eos_token_id": null, "bos_token_id": -1, "hidden_size": 64.0)",
      R"("torch_dtype": null, "dtype": "torch.float32")",
  };
  const ModelSpec plain = MustParse(Small(""));
  for (const char* extra : extras) EXPECT_EQ(MustParse(Small(extra)), plain) << extra;
}

TEST(HfConfig, ReadsEveryScalingInBothSpellings) {
  const ModelSpec linear = MustParse(Small(R"("rope_scaling": {"type": "linear", "factor": 2})"));
  EXPECT_EQ(linear.layers.front().attention.rope.scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(linear.layers.front().attention.rope.scaling.factor, 2.0);
  EXPECT_EQ(linear.layers.front().attention.rope.scaling.original_max_positions, 2048);
  EXPECT_EQ(linear.max_positions, 4096);
  const ModelSpec dynamic = MustParse(
      Small(R"("rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e6})"));
  EXPECT_EQ(dynamic.layers.front().attention.rope.scaling.kind, RopeScaling::Kind::kDynamic);
  EXPECT_EQ(dynamic.layers.front().attention.rope.scaling.original_max_positions, 2048);
  EXPECT_EQ(dynamic.layers.front().attention.rope.theta, 1e6);
  EXPECT_EQ(dynamic.max_positions, 8192);
  EXPECT_EQ(dynamic.DefaultPositions(), 2048) << "short prompts must not change";
}

TEST(HfConfig, ReadsBiasesAndAnOddHeadSize) {
  const ModelSpec spec = MustParse(Small(
      R"("attention_bias": true, "mlp_bias": true, "head_dim": 32, "num_key_value_heads": 2)"));
  const AttentionSpec& attention = spec.layers.front().attention;
  const MlpSpec& mlp = spec.layers.front().mlp;
  EXPECT_TRUE(attention.qkv_bias && attention.out_bias && mlp.bias);
  EXPECT_EQ(attention.qkv_rows(), 8 * 32);
  EXPECT_EQ(WeightShape(spec, {WeightRole::kAttentionOut}), (Shape{64, 128}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kKey, 0, WeightPart::kBias}), (Shape{64}));
  EXPECT_TRUE(HasBias(spec, WeightRole::kDown, 0));
  EXPECT_FALSE(HasBias(spec, WeightRole::kHead, 0));
}

// A compressed-tensors config of one group.
std::string Group(const std::string& weights, const std::string& inputs) {
  return Small(R"("quantization_config": {"quant_method": "compressed-tensors",
      "format": "float-quantized", "ignore": ["lm_head"], "kv_cache_scheme": null,
      "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": null,
      "weights": {)" +
               weights + R"(}, "input_activations": )" + inputs + "}}}");
}
constexpr const char* kFp8Channel = R"("num_bits": 8, "type": "float", "strategy": "channel")";
constexpr const char* kTokenInputs =
    R"({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true})";

TEST(HfConfig, ReadsFp8Weights) {
  struct Case {
    std::string config;
    QuantScheme::Inputs inputs;
  };
  using Inputs = QuantScheme::Inputs;
  const Case cases[] = {
      {Group(kFp8Channel, kTokenInputs), Inputs::kDynamic},
      {Group(R"("num_bits": 8, "type": "float", "strategy": "tensor")",
             R"({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false})"),
       Inputs::kStatic},
      {Small(R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "static"})"),
       Inputs::kStatic},
      {Small(R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"})"),
       Inputs::kDynamic},
      {Small(R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"})"),
       Inputs::kStatic},
  };
  const ModelSpec plain = MustParse(Small(""));
  for (const Case& c : cases) {
    const ModelSpec spec = MustParse(c.config);
    EXPECT_EQ(spec.quantization, Fp8Scheme(c.inputs)) << c.config;
    EXPECT_EQ(WeightDType(spec, {WeightRole::kUp}), DType::kF8E4M3);
    EXPECT_EQ(WeightDType(spec, {WeightRole::kHead}), spec.dtype);
    EXPECT_EQ(WeightParts(spec, WeightRole::kUp, 0).size(), c.inputs == Inputs::kStatic ? 3u : 2u);
    EXPECT_EQ(SpecFromJson(SpecToJson(spec)).value(), spec);
    EXPECT_EQ(NumParameters(spec), NumParameters(plain));
    // Quantizing fp32 gives one byte per element and one scale per row.
    const AttentionSpec& attention = spec.layers.front().attention;
    const MlpSpec& mlp = spec.layers.front().mlp;
    const int64_t elements = (attention.qkv_rows() + 64 + 3 * mlp.intermediate_size) * 64;
    const int64_t rows = attention.qkv_rows() + 2 * 64 + 2 * mlp.intermediate_size;
    EXPECT_EQ(StepWeightBytes(plain) - StepWeightBytes(spec),
              spec.num_layers() * (3 * elements - 4 * rows));
  }
}

TEST(HfConfig, RefusesOtherQuantizedGroups) {
  struct Case {
    std::string config;
    const char* named;
  };
  const Case cases[] = {
      {Group(R"("num_bits": 8, "type": "float", "strategy": "token")", kTokenInputs),
       "group_0.weights.strategy: \"token\""},
      {Group(R"("num_bits": 4, "type": "float", "strategy": "channel")", kTokenInputs),
       "group_0.weights.num_bits: 4"},
      {Group(R"("num_bits": 8, "type": "int", "strategy": "channel")", kTokenInputs),
       "group_0.weights.type: \"int\""},
      {Group(kFp8Channel, R"({"num_bits": 8, "type": "int", "strategy": "token"})"),
       "group_0.input_activations.type: \"int\""},
      {Group(kFp8Channel,
             R"({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": true})"),
       "group_0.input_activations.strategy: \"tensor\""},
  };
  for (const Case& c : cases) {
    const auto spec = SpecFromHfConfig(c.config);
    ASSERT_FALSE(spec.ok()) << c.config;
    EXPECT_NE(spec.status().message().find(c.named), std::string::npos) << spec.status().message();
  }
}

TEST(HfConfig, RefusesWhatWouldChangeTheResultNamingTheKey) {
  struct Case {
    const char* extra;
    const char* named;
  };
  const Case cases[] = {
      {R"("sliding_window": 4096)", "sliding_window: 4096"},
      {R"("quantization_config": {"quant_method": "hqq"})",
       "quantization_config.quant_method: \"hqq\" is not supported; take the model as it was "
       "before"},
      {R"("quantization_config": {"quant_method": "exl2", "bits": 4.0})",
       "--weights int8, int4 or"},
      {R"("quantization_config": {"quant_method": "aqlm"})", "`tandem quantize`"},
      {R"("quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true})",
       "quant_method: \"bitsandbytes\" is not supported; take the model as it was before"},
      {R"("quantization_config": {"load_in_8bit": true})",
       "quantization_config.load_in_8bit: true is not supported; take the model as it was before"},
      {R"("quantization_config": {"quant_method": "gptq_marlin", "bits": 4})",
       "quant_method: \"gptq_marlin\" is not supported; its weights are in the order of a kernel"},
      {R"("quantization_config": {"quant_method": "mine"})",
       "quant_method: \"mine\" is not supported; supported are awq, compressed-tensors"},
      {R"("quantization_config": {"quant_method": "fp8"})", "activation_scheme: is missing"},
      {R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
           "weight_block_size": [128]})",
       "quantization_config.weight_block_size: a list is not supported; it must be the rows and"},
      {R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
           "fmt": "e5m2"})",
       "quantization_config.fmt: \"e5m2\""},
      {R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8",
           "kv_cache_quant_algo": "BANANA"})",
       "kv_cache_quant_algo: \"BANANA\" is not supported; supported are FP8, INT8"},
      {R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})",
       "quantization_config.quantized_layers: is missing"},
      {R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
          "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4"}}})",
       "quantized_layers.b: differs from the other layers"},
      {R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
          "quantized_layers": {"a": {"quant_algo": "W2A2"}}})",
       "quantized_layers.a.quant_algo: \"W2A2\""},
      {R"("quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 128})",
       "quantization_config.bits: 3 is not supported; supported are 4 and 8"},
      {R"("quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 0})",
       "quantization_config.group_size: 0"},
      {R"("quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
           "checkpoint_format": "marlin"})",
       "checkpoint_format: \"marlin\" is not supported; its weights are in the order of a kernel: "
       "take"},
      {R"("quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
           "dynamic": {"+:.*down.*": {"bits": 8}}})",
       "quantization_config.dynamic.+:.*down.*: settings by module are not supported"},
      {R"("quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128,
           "version": "GEMV_FAST"})",
       "quantization_config.version: \"GEMV_FAST\" is not supported; supported are gemm, gemv"},
      {R"("quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24",
           "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}})",
       "quantization_config.format: \"marlin-24\""},
      {R"("quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
           "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int",
           "strategy": "channel"}}, "b": {"weights": {"num_bits": 8, "type": "int",
           "strategy": "channel"}}}})",
       "config_groups.b: differs from the other groups"},
      {R"("quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"})",
       "config_groups: is missing"},
      {R"("hidden_act": "tanh")", "hidden_act: \"tanh\""},
      {R"("layer_types": ["sliding_attention"])", "layer_types"},
      {R"("partial_rotary_factor": 1.5)", "partial_rotary_factor"},
      {R"("rope_scaling": {"rope_type": "yarn"})", "rope_scaling.factor: is missing"},
      {R"("rope_scaling": {"type": "longrope"})", "rope_scaling.short_factor has 0 numbers"},
      {R"("rope_parameters": {"rope_type": "mrope"})", "rope_parameters.rope_type"},
      {R"("rope_parameters": {"full_attention": {"rope_type": "default"}})", "full_attention"},
      {R"("rope_scaling": {"type": "linear"})", "rope_scaling.factor: is missing"},
      {R"("rope_scaling": {"type": "linear", "factor": "4"})", "rope_scaling.factor"},
      {R"("rope_scaling": {"type": "linear", "factor": 0.5})", "rope_scaling.factor"},
      {R"("rope_scaling": {"type": "dynamic", "factor": 1e300})", "rope_scaling.factor: 1e+300"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8})", "rope_scaling.low_freq_factor"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                           "high_freq_factor": 1})",
       "low_freq_factor must not be above rope_scaling.high_freq_factor"},
      {R"("rope_scaling": "linear")", "rope_scaling: must be an object"},
      {R"("torch_dtype": "float64")", "torch_dtype"},
      {R"("dtype": "int8")", "dtype"},
      {R"("torch_dtype": 16)", "torch_dtype: must be a string"},
      {R"("vocab_size": null)", "vocab_size: is missing"},
      {R"("vocab_size": "100")", "vocab_size: must be a whole number"},
      {R"("vocab_size": -5)", "vocab_size"},
      {R"("vocab_size": 99999999999)", "vocab_size"},
      {R"("hidden_size": 63.5)", "hidden_size"},
      {R"("hidden_size": 66)", "head_dim is missing"},
      {R"("num_hidden_layers": 0)", "num_hidden_layers: 0"},
      {R"("num_hidden_layers": 99999999999)", "num_hidden_layers: 99999999999"},
      {R"("num_hidden_layers": 1e300)", "num_hidden_layers"},
      {R"("num_attention_heads": 0)", "num_attention_heads is 0"},
      {R"("num_key_value_heads": 3)", "num_key_value_heads (3)"},
      {R"("head_dim": 15)", "head_dim"},
      {R"("head_dim": [])", "head_dim: must be a whole number, found a list"},
      {R"("rms_norm_eps": 0)", "rms_norm_eps is 0"},
      {R"("rope_theta": -1)", "rope_theta"},
      {R"("tie_word_embeddings": "yes")", "tie_word_embeddings: must be true or false"},
      {R"("eos_token_id": "</s>")", "eos_token_id"},
      {R"("eos_token_id": [2, "x"])", "eos_token_id"},
      {R"("max_position_embeddings": 0)", "max_position_embeddings is 0"},
  };
  for (const Case& c : cases) {
    const auto spec = SpecFromHfConfig(Small(c.extra));
    ASSERT_FALSE(spec.ok()) << c.extra;
    EXPECT_NE(spec.status().message().find(c.named), std::string::npos)
        << c.extra << ": " << spec.status().message();
  }
}

// Families spell the same sizes differently.
TEST(HfConfig, NamesASizeAsTheConfigSpellsIt) {
  const auto error = [](const std::string& architecture, const std::string& keys) {
    return SpecFromHfConfig(R"({"architectures": [")" + architecture +
                            R"("], "vocab_size": 100, )" + keys + "}")
        .status()
        .message();
  };
  EXPECT_EQ(error("GPT2LMHeadModel", R"("n_embd": 64, "n_layer": 2, "n_head": -2,
                  "n_positions": 64, "activation_function": "gelu_new")"),
            "n_head is -2; it must be between 1 and 4096");
  EXPECT_EQ(error("LlamaForCausalLM", R"("hidden_size": 64, "intermediate_size": 128,
                  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 3)"),
            "num_attention_heads (4) must be a multiple of num_key_value_heads (3)");
}

TEST(HfConfig, RefusesInvalidConfigs) {
  const std::string deep = std::string(1'000'000, '[');
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), std::string("null"),
        std::string("{\"architectures\": \"Llama\"}"), std::string("{\"architectures\": []}"), deep,
        "{\"architectures\": " + deep + std::string(1'000'000, ']') + "}"}) {
    EXPECT_FALSE(SpecFromHfConfig(text).ok()) << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace tandem
