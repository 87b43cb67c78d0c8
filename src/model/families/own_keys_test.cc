#include "model/families/own_keys.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/testing/source_dir.h"
#include "model/families/families.h"
#include "model/testing/configs.h"

namespace tandem {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string FixtureConfig(const std::string& family) {
  std::ifstream file(SourceDir() / "tests/data/families" / family / "config.json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

json Written(const std::string& config, const ConfigOptions& options) {
  const auto text = ConfigWithOptions(config, options);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? json::parse(*text) : json();
}

std::string Refusal(const std::string& config, const ConfigOptions& options) {
  const Status status = ConfigWithOptions(config, options).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  return status.message();
}

std::string With(const std::string& config, const json& keys) {
  json changed = json::parse(config);
  changed.update(keys);
  return changed.dump();
}

TEST(OwnKeys, WithoutOptionsTheTextIsReturnedAsItIs) {
  const std::string odd = "{ \"any\" : 1.50 }\n";
  EXPECT_EQ(*ConfigWithOptions(odd, {}), odd);
}

TEST(OwnKeys, TheBaseIsSpelledAsTheConfigSpellsIt) {
  const ConfigOptions base = {.rotary_base = 123456.0};
  EXPECT_EQ(Written(FixtureConfig("qwen2"), base).at("rope_theta"), 123456.0);
  EXPECT_EQ(Written(FixtureConfig("gpt_neox"), base).at("rotary_emb_base"), 123456.0);
  EXPECT_EQ(Written(FixtureConfig("internlm_dynamic"), base).at("rotary").at("base"), 123456.0);
  const json gemma = Written(FixtureConfig("gemma3_text"), base);
  EXPECT_EQ(gemma.at("rope_theta"), 123456.0);
  EXPECT_EQ(gemma.at("rope_local_base_freq"), 123456.0);
  json old = json::parse(FixtureConfig("qwen2"));
  old.erase("rope_theta");
  EXPECT_EQ(Written(old.dump(), base).at("rope_theta"), 123456.0);
  old["rope_parameters"] = {{"rope_theta", 5.0}, {"rope_type", "default"}};
  EXPECT_EQ(Written(old.dump(), base).at("rope_parameters").at("rope_theta"), 123456.0);
}

TEST(OwnKeys, ScalingIsSpelledAsTheConfigSpellsIt) {
  const ConfigOptions linear = {.rotary_scaling_type = "linear", .rotary_scaling_factor = 4.0};
  const std::string qwen = FixtureConfig("qwen2");
  EXPECT_EQ(Written(qwen, linear).at("rope_scaling"),
            (json{{"rope_type", "linear"}, {"factor", 4.0}}));
  const std::string older = With(qwen, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}});
  EXPECT_EQ(Written(older, linear).at("rope_scaling"), (json{{"type", "linear"}, {"factor", 4.0}}));
  const std::string newer =
      With(qwen, {{"rope_parameters", {{"rope_theta", 5.0}, {"rope_type", "default"}}}});
  EXPECT_EQ(Written(newer, linear).at("rope_parameters"),
            (json{{"rope_theta", 5.0}, {"rope_type", "linear"}, {"factor", 4.0}}));
  // From the trained context, which the key holds then.
  EXPECT_EQ(Written(kLlama32, linear).at("max_position_embeddings"), 8192);
}

TEST(OwnKeys, TheTurningPartIsSpelledAsTheConfigSpellsIt) {
  EXPECT_EQ(Written(FixtureConfig("gptj"), {.rotary_dim = 4}).at("rotary_dim"), 4);
  const int64_t head =
      json::parse(FixtureConfig("gpt_neox")).at("hidden_size").get<int64_t>() /
      json::parse(FixtureConfig("gpt_neox")).at("num_attention_heads").get<int64_t>();
  const double share = Written(FixtureConfig("gpt_neox"), {.rotary_dim = 6}).at("rotary_pct");
  EXPECT_EQ(static_cast<int64_t>(share * static_cast<double>(head)), 6);
}

TEST(OwnKeys, WhatNoKeySaysIsRefusedByName) {
  EXPECT_THAT(Refusal(FixtureConfig("gptj"), {.rotary_base = 5.0}), HasSubstr("--rotary_base: "));
  EXPECT_THAT(Refusal(FixtureConfig("qwen2"), {.rotary_dim = 4}), HasSubstr("--rotary_dim: "));
  EXPECT_THAT(Refusal(FixtureConfig("chatglm3_32k"),
                      {.rotary_scaling_type = "linear", .rotary_scaling_factor = 2.0}),
              HasSubstr("--rotary_scaling_type, --rotary_scaling_factor: "));
  // The folder's own code reads no such key.
  EXPECT_THAT(Refusal(FixtureConfig("baichuan2_7b"), {.rotary_base = 5.0}),
              HasSubstr("--rotary_base: config.json of BaichuanForCausalLM has no key"));
  // What changes nothing needs no key.
  EXPECT_TRUE(ConfigWithOptions(FixtureConfig("baichuan2_7b"), {.rotary_base = 10000.0}).ok());
}

TEST(OwnKeys, VersionsAreKept) {
  json config = json::parse(FixtureConfig("chatglm3_32k"));
  config.erase("_name_or_path");
  const ConfigOptions third = {.chatglm_model_version = "chatglm3_6b_32k"};
  EXPECT_FALSE(SpecFromHfConfig(config.dump()).ok());
  const json written = Written(config.dump(), third);
  EXPECT_EQ(*SpecFromHfConfig(written.dump()), *SpecFromHfConfig(config.dump(), third));
}

// Whatever is written says the same as the options do, and nothing is written that does not.
TEST(OwnKeys, EveryFamilysConfigSaysWhatTheOptionsSayOrIsRefused) {
  int written = 0, refused = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SourceDir() / "tests/data/families")) {
    if (!entry.is_directory()) continue;
    const std::string config = FixtureConfig(entry.path().filename());
    for (const ConfigOptions& options :
         {ConfigOptions{.rotary_base = 77777.0}, ConfigOptions{.rotary_dim = 4},
          ConfigOptions{.rotary_scaling_type = "linear", .rotary_scaling_factor = 3.0},
          ConfigOptions{.rotary_base = 5e5,
                        .rotary_scaling_type = "dynamic",
                        .rotary_scaling_factor = 2.0}}) {
      const auto wanted = SpecFromHfConfig(config, options);
      const auto text = ConfigWithOptions(config, options);
      if (!wanted.ok()) {
        EXPECT_EQ(text.status().message(), wanted.status().message());
        continue;
      }
      if (!text.ok()) {
        EXPECT_EQ(text.status().code(), Code::kUnimplemented) << entry.path();
        ++refused;
        continue;
      }
      EXPECT_EQ(*SpecFromHfConfig(*text), *wanted) << entry.path();
      for (const char* key : {"rotary_base", "rotary_scaling_type", "rotary_scaling_factor"}) {
        EXPECT_FALSE(json::parse(*text).contains(key)) << entry.path();
      }
      ++written;
    }
  }
  EXPECT_GT(written, 30);
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace tandem
