// Options beside the config.
#include "model/config_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/testing/configs.h"

namespace tandem {
namespace {

TEST(ConfigOptions, GoOverTheRotaryPositionsOfTheConfig) {
  const auto rope = [](const ConfigOptions& options, const std::string& config) {
    const auto spec = SpecFromHfConfig(config, options);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    return spec->layers[1].attention.rope;
  };
  EXPECT_EQ(rope({.rotary_base = 5e5}, Small("")).theta, 5e5);
  EXPECT_EQ(rope({.rotary_dim = 8}, Small("")).dim, 8);
  const ConfigOptions longer = {.rotary_scaling_type = "linear", .rotary_scaling_factor = 2.0};
  const RopeScaling twice = {
      .kind = RopeScaling::Kind::kLinear, .factor = 2.0, .original_max_positions = 512};
  EXPECT_EQ(rope(longer, Small(R"("max_position_embeddings": 512)")).scaling, twice);
  EXPECT_EQ(SpecFromHfConfig(Small(R"("max_position_embeddings": 512)"), longer)->max_positions,
            1024);
  // In place of the config's own, from the same trained context.
  const std::string scaled =
      Small(R"("max_position_embeddings": 512, "rope_scaling": {"type": "dynamic", "factor": 8})");
  EXPECT_EQ(rope(longer, scaled).scaling, twice);
  EXPECT_EQ(SpecFromHfConfig(scaled, longer)->max_positions, 1024);
}

TEST(ConfigOptions, AreRefusedWhereTheModelHasNoUseForThem) {
  const auto refusal = [](const ConfigOptions& options, const std::string& config) {
    return SpecFromHfConfig(config, options).status().message();
  };
  EXPECT_EQ(refusal({.rotary_scaling_type = "linear"}, Small("")),
            "rotary_scaling_type: rotary_scaling_type and rotary_scaling_factor go together");
  EXPECT_EQ(refusal({.rotary_scaling_factor = 2.0}, Small("")),
            "rotary_scaling_factor: rotary_scaling_type and rotary_scaling_factor go together");
  EXPECT_EQ(refusal({.baichuan_model_version = "v1_7b"}, Small("")),
            "baichuan_model_version: is not for a model of the architecture LlamaForCausalLM");
  const std::string bloom = R"({"architectures": ["BloomForCausalLM"], "vocab_size": 100,
                                "hidden_size": 64, "n_layer": 2, "n_head": 4})";
  EXPECT_EQ(refusal({.rotary_base = 2.0}, bloom), "rotary_base: the model has no rotary positions");
}

TEST(ConfigOptions, SayWhichModelOfAFamilyItIs) {
  const auto baichuan = [](int64_t vocab, const std::string& version) {
    return SpecFromHfConfig(
        R"({"architectures": ["BaichuanForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": )" +
            std::to_string(vocab) + "}",
        {.baichuan_model_version = version});
  };
  EXPECT_EQ(baichuan(320, "").status().message(),
            "baichuan_model_version: is missing: a vocabulary of 320 does not tell Baichuan 1 from "
            "2; give --baichuan_model_version");
  EXPECT_FALSE(baichuan(64000, "")->head_normed);
  EXPECT_TRUE(baichuan(125696, "")->head_normed);
  EXPECT_TRUE(baichuan(64000, "v2_13b")->head_normed);
  EXPECT_EQ(baichuan(320, "v1_7b")->layers[0].attention.rope.dim, 16);
  EXPECT_EQ(baichuan(320, "v1_13b")->layers[0].attention.alibi_scale, 1.0);

  const auto gpt = [](const std::string& architecture, const std::string& version) {
    return SpecFromHfConfig(R"({"architectures": [")" + architecture +
                                R"("], "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 90})",
                            {.gpt_model_version = version});
  };
  EXPECT_EQ(gpt("GPT2LMHeadModel", "gpt2")->family, "gpt2");
  EXPECT_EQ(gpt("GPT2LMHeadModel", "santacoder")->family, "santacoder");
  EXPECT_EQ(gpt("GPTBigCodeForCausalLM", "starcoder")->family, "gpt_bigcode");
  EXPECT_EQ(gpt("GPTBigCodeForCausalLM", "gpt2").status().message(),
            "gpt_model_version: \"gpt2\" is not what config.json describes: of the architecture "
            "GPTBigCodeForCausalLM are starcoder, santacoder");

  const auto chatglm = [](const std::string& version) {
    return SpecFromHfConfig(
        R"({"architectures": ["ChatGLMModel"], "padded_vocab_size": 65024, "hidden_size": 64,
            "num_layers": 2, "num_attention_heads": 4, "multi_query_group_num": 2,
            "kv_channels": 16, "ffn_hidden_size": 128, "seq_length": 512, "rope_ratio": 50})",
        {.chatglm_model_version = version});
  };
  EXPECT_NE(chatglm("").status().message().find("give --chatglm_model_version"), std::string::npos);
  EXPECT_EQ(chatglm("chatglm2_6b_32k")->layers[0].attention.rope.scaling.factor, 50.0);
  EXPECT_EQ(chatglm("chatglm3_6b_32k")->layers[0].attention.rope.theta, 500000.0);
}

}  // namespace
}  // namespace tandem
