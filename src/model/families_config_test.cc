// What the configs of single families say of their models, and which families there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>

#include "model/families/families.h"
#include "model/testing/configs.h"

namespace tandem {
namespace {

TEST(Families, RefusesOtherArchitecturesWithTheListOfOurs) {
  for (const char* name : {"MambaForCausalLM", "DeepseekV32ForCausalLM", "BertModel"}) {
    const auto spec = SpecFromHfConfig(std::string("{\"architectures\": [\"") + name + "\"]}");
    ASSERT_FALSE(spec.ok());
    EXPECT_EQ(spec.status().code(), Code::kUnimplemented);
    EXPECT_NE(spec.status().message().find(name), std::string::npos);
    EXPECT_NE(spec.status().message().find("LlamaForCausalLM"), std::string::npos);
    // Each once, though some families share a name.
    const std::string list = spec.status().message().substr(spec.status().message().rfind(": "));
    std::set<std::string> names;
    std::istringstream words(list.substr(2));
    for (std::string word; words >> word;) EXPECT_TRUE(names.insert(word).second) << word;
    EXPECT_GE(names.size(), 30u);
  }
}

TEST(Families, LlamaHasTheStandardNames) {
  const Family* llama = *FindFamily("LlamaForCausalLM");
  const ModelSpec spec = MustParse(Small(""));
  const auto name = [&](const WeightId& id) { return llama->source(spec, id).name; };
  EXPECT_EQ(name({WeightRole::kQuery, 3}), "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(name({WeightRole::kDown, 0, WeightPart::kBias}), "model.layers.0.mlp.down_proj.bias");
  EXPECT_EQ(name({WeightRole::kHead}), "lm_head.weight");
}

TEST(HfConfig, EveryOtherLayerOfGptOssHasAWindow) {
  const std::string sizes = R"({"architectures": ["GptOssForCausalLM"], "vocab_size": 100,
      "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 3, "head_dim": 16,
      "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8)";
  const auto windows = [&](const std::string& extra) {
    std::vector<int64_t> windows;
    for (const LayerSpec& layer : MustParse(sizes + extra + "}").layers) {
      windows.push_back(layer.attention.window);
    }
    return windows;
  };
  EXPECT_EQ(windows(""), (std::vector<int64_t>{128, 0, 128})) << "as transformers";
  EXPECT_EQ(windows(R"(, "sliding_window": 24)"), (std::vector<int64_t>{24, 0, 24}));
  EXPECT_EQ(SpecFromHfConfig(sizes + R"(, "sliding_window": 0})").status().message(),
            "sliding_window: 0 keys");
  EXPECT_EQ(windows(R"(, "sliding_window": 24, "layer_types": ["full_attention",
                        "full_attention", "sliding_attention"])"),
            (std::vector<int64_t>{0, 0, 24}));
}

// Gemma 3 with a window in its first layer.
std::string Gemma3(const std::string& extra) {
  return R"({"architectures": ["Gemma3ForCausalLM"], "vocab_size": 100, "hidden_size": 64,
      "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
      "max_position_embeddings": 512, "sliding_window": 24,
      "layer_types": ["sliding_attention", "full_attention"], )" +
         extra + "}";
}

TEST(HfConfig, LayersWithAWindowTurnByABaseOfTheirOwnAsBothVersionsOfTransformersWriteIt) {
  const ModelSpec spec = MustParse(Gemma3(R"("rope_theta": 4e5, "rope_local_base_freq": 200,
      "rope_scaling": {"rope_type": "linear", "factor": 8})"));
  const std::string kinds = R"("rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 200},
      "full_attention": {"rope_type": "linear", "rope_theta": 4e5, "factor": )";
  EXPECT_EQ(MustParse(Gemma3(kinds + "8}}")), spec);
  EXPECT_EQ(spec.max_positions, 512) << "the context of the scaled rotation";
  const RopeSpec &local = spec.layers[0].attention.rope, &whole = spec.layers[1].attention.rope;
  EXPECT_EQ(local, (RopeSpec{.dim = 16, .theta = 200}));
  EXPECT_EQ(whole.theta, 4e5);
  EXPECT_EQ(whole.scaling.factor, 8.0);
  const auto refusal = [](const std::string& extra) {
    return SpecFromHfConfig(Gemma3(extra)).status().message();
  };
  EXPECT_THAT(refusal(kinds + "0.5}}"),
              ::testing::StartsWith("rope_parameters.full_attention.factor: 0.5 does not stretch"));
  EXPECT_EQ(refusal(R"("rope_parameters": {"full_attention": {"rope_theta": 0},
                                           "sliding_attention": {"rope_theta": 1}})"),
            "layer 1: rope_parameters.full_attention.rope_theta is 0.000000; it must be a positive "
            "number");
  EXPECT_EQ(refusal(R"("rope_parameters": {"full_attention": {"rope_theta": 1}})"),
            "rope_parameters.sliding_attention: is missing");
}

// Olmo-3-7B: three of four layers have a window and the rotation of the trained context.
TEST(HfConfig, ReadsOlmo3AsBothVersionsOfTransformersWriteIt) {
  const auto config = [](const std::string& rope) {
    return MustParse(R"({"architectures": ["Olmo3ForCausalLM"], "vocab_size": 100278,
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 8,
        "num_attention_heads": 32, "max_position_embeddings": 65536, "rms_norm_eps": 1e-06,
        "sliding_window": 4096, )" +
                     rope + "}");
  };
  const std::string yarn = R"({"rope_type": "yarn", "factor": 8.0, "beta_fast": 32,
      "beta_slow": 1, "attention_factor": 1.2079441541679836,
      "original_max_position_embeddings": 8192)";
  const ModelSpec spec = config(R"("rope_theta": 500000, "rope_scaling": )" + yarn + "}");
  EXPECT_EQ(config(R"("rope_parameters": {"full_attention": )" + yarn +
                   R"(, "rope_theta": 500000}, "sliding_attention": {"rope_theta": 500000}})"),
            spec);
  EXPECT_EQ(spec.max_positions, 65536);
  for (int64_t i = 0; i < spec.num_layers(); ++i) {
    const AttentionSpec& attention = spec.layer(i).attention;
    const bool whole = i % 4 == 3;
    EXPECT_EQ(attention.window, whole ? 0 : 4096);
    EXPECT_EQ(attention.rope.theta, 500000.0);
    EXPECT_EQ(attention.rope.scaling.factor, whole ? 8.0 : 1.0);
  }
}

// A config of Llama 4 with three layers.
std::string Llama4(const std::string& extra) {
  return R"({"architectures": ["Llama4ForCausalLM"], "vocab_size": 100, "hidden_size": 64,
      "intermediate_size": 32, "intermediate_size_mlp": 96, "num_hidden_layers": 3,
      "num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 7)" +
         extra + "}";
}

TEST(HfConfig, Llama4ListsItsLayersOrTakesEveryNth) {
  const auto described = [](const std::string& extra) {
    std::string text;
    for (const LayerSpec& layer : MustParse(Llama4(extra)).layers) {
      text += layer.moe.num_experts > 0 ? "experts" : std::to_string(layer.mlp.intermediate_size);
      text += layer.attention.rope.dim > 0 ? " turns; " : "; ";
    }
    return text;
  };
  EXPECT_EQ(described(""), "experts turns; experts turns; experts turns; ");
  EXPECT_EQ(described(R"(, "interleave_moe_layer_step": 2, "no_rope_layer_interval": 3)"),
            "96 turns; experts turns; 96; ");
  EXPECT_EQ(described(R"(, "moe_layers": [2], "no_rope_layers": [0, 1, 0])"),
            "96; 96 turns; experts; ");
  for (const auto& [extra, named] :
       {std::pair(R"(, "interleave_moe_layer_step": 0)", "interleave_moe_layer_step"),
        {R"(, "no_rope_layer_interval": 0)", "no_rope_layer_interval"},
        {R"(, "no_rope_layers": [1])", "no_rope_layers"},
        {R"(, "num_experts_per_tok": 99)", "num_experts_per_tok is 99"},
        {R"(, "floor_scale": 1, "no_rope_layers": [0, 1, 0])", "floor_scale is 1"}}) {
    const auto spec = SpecFromHfConfig(Llama4(extra));
    ASSERT_FALSE(spec.ok()) << extra;
    EXPECT_NE(spec.status().message().find(named), std::string::npos) << spec.status().message();
  }
}

// The first 40B has no flag of its architecture.
TEST(HfConfig, FalconWithKeyValueHeadsIsOfTheNewArchitecture) {
  const auto layer = [](const std::string& extra) {
    return MustParse(R"({"architectures": ["RWForCausalLM"], "vocab_size": 100, "hidden_size": 64,
        "n_layer": 2, "n_head": 4, "parallel_attn": true)" +
                     extra + "}")
        .layers[0];
  };
  EXPECT_EQ(layer(R"(, "n_head_kv": 2)").attention.num_kv_heads, 2);
  EXPECT_EQ(layer(R"(, "n_head_kv": 2)").residual, Residual::kParallelNorms);
  EXPECT_EQ(layer("").attention.num_kv_heads, 1);
  EXPECT_EQ(layer("").residual, Residual::kParallel);
}

TEST(HfConfig, TellsChatGlm6bFromItsSuccessors) {
  const std::string config = R"({"architectures": ["ChatGLMModel"], "vocab_size": 200,
      "hidden_size": 64, "num_layers": 2, "num_attention_heads": 4, "position_encoding_2d": true,
      "bos_token_id": 104, "mask_token_id": 100, "gmask_token_id": 101)";
  const ModelSpec spec = MustParse(config + "}");
  EXPECT_EQ(spec.family, "chatglm6b");
  EXPECT_EQ(spec.prefix, (PrefixSpec{.start_id = 104, .mask_ids = {101, 100}}));
  EXPECT_EQ(spec.layers[1].attention.rope.dim, 8);
  EXPECT_TRUE(spec.HasSecondPositions());
  EXPECT_EQ(SpecFromJson(SpecToJson(spec)).value(), spec);
  // The first revision leaves out the ids of the masks, which its vocabulary of 150,528 has.
  EXPECT_EQ(SpecFromHfConfig(R"({"architectures": ["ChatGLMModel"], "vocab_size": 200,
                "hidden_size": 64, "num_layers": 2, "num_attention_heads": 4,
                "position_encoding_2d": true, "bos_token_id": 104})")
                .status()
                .message(),
            "gmask_token_id: 150001 is outside the vocabulary (vocab_size is 200)");
}

TEST(HfConfig, TheTokenizersFilesNameTheMasksOfGlm10b) {
  const std::string config = R"({"architectures": ["GLMModel"], "vocab_size": 200,
      "hidden_size": 64, "num_layers": 2, "num_attention_heads": 4, "max_sequence_length": 32,
      "block_position_encoding": true)";
  const std::string added = R"({"[gMASK]": 110, "[MASK]": 111, "<|startofpiece|>": 112})";
  const auto spec = SpecFromHfConfig(config + "}", {}, added);
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->prefix, (PrefixSpec{.start_id = 112, .mask_ids = {111, 110}}));
  EXPECT_EQ(spec->second_position_rows, 33);
  const auto named = SpecFromHfConfig(config + R"(, "sop_token_id": 1, "smask_token_id": 2})");
  EXPECT_EQ(named->prefix, (PrefixSpec{.start_id = 1, .mask_ids = {2}}));
  for (const char* damaged : {"", "{", "[]", R"({"[MASK]": 111})"}) {
    EXPECT_THAT(SpecFromHfConfig(config + "}", {}, damaged).status().message(),
                ::testing::StartsWith("sop_token_id: is missing: no added_tokens.json"));
  }
  EXPECT_EQ(SpecFromHfConfig(config + "}", {}, R"({"<|startofpiece|>": 200})").status().message(),
            "added_tokens.<|startofpiece|>: 200 is outside the vocabulary (vocab_size is 200)");
}

TEST(HfConfig, ATextModelBesideOthersIsAnObjectOfTheConfig) {
  const ModelSpec alone = MustParse(Llama4(R"(, "torch_dtype": "bfloat16")"));
  EXPECT_EQ(alone.eos_ids, std::vector<int32_t>{7});
  const std::string beside = R"({"architectures": ["Llama4ForConditionalGeneration"],
      "torch_dtype": "bfloat16", "vision_config": {}, "text_config": )";
  EXPECT_EQ(MustParse(beside + Llama4("") + "}"), alone);
  EXPECT_EQ(SpecFromHfConfig(beside + "3}").status().message(),
            "text_config: must be an object, found 3");
}

// As Google ships the model of 4 billion parameters: its code's defaults are left out.
TEST(HfConfig, WhatTheConfigOfASeeingGemma3LeavesOutIsItsCodesDefault) {
  const ModelSpec spec = MustParse(R"({"architectures": ["Gemma3ForConditionalGeneration"],
      "torch_dtype": "bfloat16", "eos_token_id": [1, 106], "vision_config": {}, "text_config": {
      "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024}})");
  EXPECT_EQ(spec.dtype, DType::kBF16);
  EXPECT_EQ(spec.vocab_size, 262208);
  EXPECT_EQ(spec.max_positions, 131072);
  EXPECT_EQ(spec.eos_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_TRUE(spec.tied_head);
  const AttentionSpec& local = spec.layer(0).attention;
  const AttentionSpec& whole = spec.layer(5).attention;
  EXPECT_EQ(whole.num_heads, 8);
  EXPECT_EQ(whole.num_kv_heads, 4);
  EXPECT_EQ(whole.head_dim, 256);
  EXPECT_EQ(whole.scale, 1.0 / 16.0);
  EXPECT_EQ(whole.window, 0);
  EXPECT_EQ(whole.rope.theta, 1e6);
  EXPECT_EQ(whole.rope.scaling.factor, 8.0);
  EXPECT_EQ(local.window, 1024);
  EXPECT_EQ(local.rope.theta, 1e4);
  EXPECT_EQ(local.rope.scaling, RopeScaling{});
}

TEST(HfConfig, ReadsWhichLayersHaveExpertsAndTheirRule) {
  const auto read = [](const std::string& architecture, const std::string& extra) {
    return MustParse(R"({"architectures": [")" + architecture +
                     R"("], "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
                         "num_hidden_layers": 4, "num_attention_heads": 4,
                         "moe_intermediate_size": 32, "num_experts_per_tok": 2, )" +
                     extra + "}");
  };
  const auto dense = [](const ModelSpec& spec) {
    std::string layers;
    for (int64_t i = 0; i < spec.num_layers(); ++i) layers += spec.has_experts(i) ? 'e' : '-';
    return layers;
  };
  ModelSpec spec = read("Qwen3MoeForCausalLM",
                        R"("num_experts": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3])");
  EXPECT_EQ(dense(spec), "-e--");
  EXPECT_EQ(spec.layers[0].mlp.intermediate_size, 128);
  EXPECT_EQ(spec.layers[1].mlp.intermediate_size, 0);
  EXPECT_EQ(spec.layers[1].moe.expert.intermediate_size, 32);
  EXPECT_FALSE(spec.layers[1].moe.routing.renormalise);
  spec = read("Glm4MoeForCausalLM",
              R"("n_routed_experts": 8, "first_k_dense_replace": 1, "n_shared_experts": 2,
                 "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2)");
  EXPECT_EQ(dense(spec), "-eee");
  EXPECT_EQ(spec.layers[1].mlp.intermediate_size, 64) << "two shared experts in one MLP";
  EXPECT_TRUE(spec.layers[1].moe.correction);
  EXPECT_EQ(spec.layers[1].moe.routing.chosen_groups, 2);
  EXPECT_EQ(spec.layers[1].moe.routing.scale, 2.5f);
}

TEST(HfConfig, DeepSeekKeepsOneLatentOfATokenAndNoValues) {
  const ModelSpec spec = MustParse(DeepSeek());
  EXPECT_EQ(spec.KvBytesPerToken(DType::kBF16), int64_t{576} * 2 * 61);
  EXPECT_EQ(spec.KvBytesPerToken(DType::kF8E4M3), int64_t{576} * 61);
  const AttentionSpec& attention = spec.layers.front().attention;
  EXPECT_EQ(attention.latent, (LatentSpec{512, 1536, 128, 128, 1e-6}));
  EXPECT_EQ(attention.head_dim, 576);
  const double larger = 0.1 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(attention.scale, larger * larger / std::sqrt(192.0));
  EXPECT_EQ(attention.rope.scaling.attention_factor, 1.0) << "both factors are alike";
  EXPECT_TRUE(attention.rope.interleaved);
  EXPECT_EQ(WeightShape(spec, {WeightRole::kQuery}), (Shape{128 * 192, 1536}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kLatent}), (Shape{576, 7168}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kLatentKey}), (Shape{128 * 128, 512}));
  EXPECT_EQ(WeightShape(spec, {WeightRole::kAttentionOut}), (Shape{7168, 128 * 128}));
  EXPECT_TRUE(WeightParts(spec, WeightRole::kKey, 0).empty());
  // 671 billion with 37 at work, and less than a fiftieth of that of multi-head attention.
  EXPECT_NEAR(static_cast<double>(NumParameters(spec)), 671e9, 1e9);
  EXPECT_NEAR(static_cast<double>(StepWeightBytes(spec)), 2 * 37e9, 2e9);

  const TensorSource value =
      FamilyOf(spec)->source(spec, {WeightRole::kLatentValue, 7, WeightPart::kScale});
  EXPECT_EQ(value.name, "model.layers.7.self_attn.kv_b_proj.weight_scale");
  EXPECT_EQ(value.rows.StoredRow(0), 128);
  EXPECT_EQ(value.rows.StoredRow(128), 256 + 128);
  EXPECT_EQ(FamilyOf(spec)->source(spec, {WeightRole::kUp, 7}).name,
            "model.layers.7.mlp.shared_experts.up_proj.weight");
  EXPECT_EQ(*SpecFromJson(SpecToJson(spec)), spec);

  const ModelSpec lite =
      MustParse(DeepSeek(R"("architectures": ["DeepseekV2ForCausalLM"], "q_lora_rank": null,
                  "scoring_func": "softmax", "topk_method": "greedy", "rope_scaling": null)"));
  EXPECT_EQ(WeightShape(lite, {WeightRole::kQuery}), (Shape{128 * 192, 7168}));
  EXPECT_TRUE(WeightParts(lite, WeightRole::kQueryDown, 0).empty());
  EXPECT_EQ(FamilyOf(lite)->source(lite, {WeightRole::kQuery, 0}).name,
            "model.layers.0.self_attn.q_proj.weight");
  EXPECT_DOUBLE_EQ(lite.layers[0].attention.scale, 1.0 / std::sqrt(192.0));
}

TEST(HfConfig, RefusesLatentsThatCannotBeNamingTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("kv_lora_rank": 0)", "kv_lora_rank: 0 elements"},
      {R"("kv_lora_rank": null)", "kv_lora_rank: is missing"},
      {R"("kv_lora_rank": 1000)", "head_dim is 1064"},
      {R"("kv_lora_rank": 9223372036854775807)", "kv_lora_rank: 9223372036854775807 elements"},
      {R"("q_lora_rank": -4)", "q_lora_rank: -4 elements"},
      {R"("qk_nope_head_dim": "many")", "qk_nope_head_dim"},
      {R"("qk_rope_head_dim": 63)", "(qk_rope_head_dim)"},
      {R"("v_head_dim": 4096)", "v_head_dim: 4096 elements"},
      {R"("scoring_func": "tanh")", "scoring_func: \"tanh\""},
      {R"("topk_method": "greedy")", "topk_method: \"greedy\""},
      {R"("rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": "x",
                           "original_max_position_embeddings": 4096})",
       "rope_scaling.mscale_all_dim"},
      {R"("rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1, "mscale_all_dim": -1e300,
                           "original_max_position_embeddings": 4096})",
       "rope_scaling.mscale_all_dim: must be between"}};
  for (const auto& [extra, part] : cases) {
    const auto spec = SpecFromHfConfig(DeepSeek(extra));
    ASSERT_FALSE(spec.ok()) << extra;
    EXPECT_NE(spec.status().message().find(part), std::string::npos) << spec.status().message();
  }
  const auto turned = SpecFromHfConfig(DeepSeek(), {.rotary_dim = 32});
  EXPECT_NE(turned.status().message().find("rotary_dim (32)"), std::string::npos)
      << turned.status().message();
}

}  // namespace
}  // namespace tandem
