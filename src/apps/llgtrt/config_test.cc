// llgtrt's configuration: merging, strictness, and the options that keys set.
#include "apps/llgtrt/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

#include "apps/llgtrt/options.h"
#include "apps/models/grammar_options.h"
#include "apps/models/session.h"
#include "apps/server/serve_options.h"
#include "base/file.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

using testing::HasSubstr;

constexpr const char* kRuntime = R"({
  "guaranteed_no_evict": true, "max_batch_size": 12, "max_num_tokens": 4096, "max_queue_size": 0,
  "enable_chunked_context": false, "enable_kv_cache_reuse": false,
  "kv_cache_free_gpu_mem_fraction": 0.25, "kv_cache_host_memory_megabytes": 3,
  "enable_batch_size_tuning": false, "enable_max_num_tokens_tuning": true,
  "kv_cache_onboard_blocks": false, "secondary_offload_min_priority": 31, "event_buffer_max_size": 9})";

class LlgtrtConfigTest : public testing::Test {
 protected:
  ~LlgtrtConfigTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder_);
    const std::filesystem::path path = folder_ / name;
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    return path;
  }
  Result<LlgtrtConfig> ReadJson5(const std::string& text) {
    return LlgtrtConfig::Read({.configs = {Write("llgtrt.json5", text)}, .runtime = {}});
  }
  std::string Refused(const std::string& text) {
    const Result<LlgtrtConfig> config = ReadJson5(text);
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument) << text;
    return config.status().message();
  }
  // A server's options after the configuration.
  EngineOptions Engine(const LlgtrtConfig& config) {
    const Status set = config.SetOptions(values_);
    EXPECT_TRUE(set.ok()) << set.message();
    return EngineOptionsFrom(values_);
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / fmt::format("llgtrt_config_{}", ::getpid());
  const std::vector<OptionSpec> rows_ = SessionOptionRows(ServeOptionRows());
  OptionValues values_{rows_};
};

TEST_F(LlgtrtConfigTest, WithoutFilesHasLlgtrtsDefaults) {
  const EngineOptions engine = Engine(LlgtrtConfig::Read({}).value());
  EXPECT_EQ(engine.max_batch_size, 128);
  EXPECT_EQ(engine.max_num_tokens, 8192);
  EXPECT_EQ(engine.max_queue_size, EngineOptions().max_queue_size) << "0 is the built-in bound";
  EXPECT_TRUE(engine.enable_batch_size_tuning);
  EXPECT_TRUE(engine.enable_max_num_tokens_tuning);
  EXPECT_EQ(engine.policy, SchedulerPolicy::kMaxUtilization);
}

TEST_F(LlgtrtConfigTest, EveryKeyOfRuntimeJsonSetsItsMember) {
  const LlgtrtConfig config =
      LlgtrtConfig::Read({.configs = {}, .runtime = Write("runtime.json", kRuntime)}).value();
  const EngineOptions engine = Engine(config);
  EXPECT_EQ(engine.policy, SchedulerPolicy::kGuaranteedNoEvict);
  EXPECT_EQ(engine.max_batch_size, 12);
  EXPECT_EQ(engine.max_num_tokens, 4096);
  EXPECT_FALSE(engine.enable_chunked_prefill);
  EXPECT_FALSE(engine.enable_prefix_reuse);
  EXPECT_EQ(engine.kv_cache_free_fraction, 0.25);
  EXPECT_FALSE(engine.enable_batch_size_tuning);
  EXPECT_TRUE(engine.enable_max_num_tokens_tuning);
  EXPECT_EQ(engine.kv_host_cache_bytes, int64_t{3} << 20);
  EXPECT_FALSE(engine.kv_onboard_blocks);
  EXPECT_EQ(engine.kv_offload_min_priority, 31);
  EXPECT_EQ(engine.kv_event_buffer, 9);
}

TEST_F(LlgtrtConfigTest, NullLeavesTheDefaultOfKeysThatMayBeNull) {
  const LlgtrtConfig config =
      ReadJson5("{runtime: {secondary_offload_min_priority: null, event_buffer_max_size: null}}")
          .value();
  const EngineOptions engine = Engine(config);
  EXPECT_EQ(engine.kv_offload_min_priority, EngineOptions().kv_offload_min_priority);
  EXPECT_EQ(engine.kv_event_buffer, EngineOptions().kv_event_buffer);
}

TEST_F(LlgtrtConfigTest, LaterFilesGoOverEarlierOnesKeyByKey) {
  const LlgtrtFiles files = {
      .configs = {Write("a", "{runtime: {max_batch_size: 3, max_queue_size: 7}}"),
                  Write("b", "{runtime: {max_batch_size: 0x4}, tokenizer: {bos_token: null}}")},
      .runtime = {}};
  const LlgtrtConfig config = LlgtrtConfig::Read(files).value();
  const EngineOptions engine = Engine(config);
  EXPECT_EQ(engine.max_batch_size, 4);
  EXPECT_EQ(engine.max_queue_size, 7);
  ASSERT_EQ(config.settings().tokenizer_config.size(), 1u);
  EXPECT_EQ(config.settings().tokenizer_config[0].name, "bos_token");
}

TEST_F(LlgtrtConfigTest, TheCommandLineGoesOverFiles) {
  ASSERT_TRUE(values_.Set("max_batch_size", {"5"}, "--max_batch_size").ok());
  const EngineOptions engine = Engine(ReadJson5("{runtime: {max_batch_size: 9}}").value());
  EXPECT_EQ(engine.max_batch_size, 5);
}

TEST_F(LlgtrtConfigTest, AValueOutOfRangeNamesFileKeyAndAllowedValues) {
  const Result<LlgtrtConfig> config = ReadJson5("{runtime: {max_batch_size: -1}}");
  ASSERT_TRUE(config.ok());
  const std::string message = config->SetOptions(values_).message();
  EXPECT_THAT(message, HasSubstr("llgtrt.json5: runtime.max_batch_size: '-1' is out of range"));
  EXPECT_THAT(message, HasSubstr("it takes a number from 1 to 4096"));
  // Whether or not the command line says otherwise.
  ASSERT_TRUE(values_.Set("max_batch_size", {"5"}, "--max_batch_size").ok());
  EXPECT_FALSE(config->SetOptions(values_).ok());
}

TEST_F(LlgtrtConfigTest, UnknownKeysAndWrongTypesAreNamed) {
  EXPECT_THAT(Refused("{runtime: {max_batch: 1}}"),
              HasSubstr("llgtrt.json5: runtime.max_batch: there is no such key"));
  EXPECT_THAT(Refused("{runtim: {}}"), HasSubstr("runtim: there is no such key"));
  EXPECT_THAT(Refused("{runtime: 5}"), HasSubstr("runtime: must be an object, not an integer"));
  EXPECT_THAT(Refused("{llguidance: {limits: []}}"), HasSubstr("llguidance.limits: must be"));
  EXPECT_THAT(Refused("[]"), HasSubstr("must hold an object"));
  EXPECT_THAT(Refused("{runtime: {max_batch_size: 1.5}}"), HasSubstr("must be an integer"));
  EXPECT_THAT(Refused("{runtime: {enable_kv_cache_reuse: 1}}"), HasSubstr("must be true or false"));
  EXPECT_THAT(Refused("{tokenizer: {bos_token: 5}}"), HasSubstr("tokenizer.bos_token: must be"));
  EXPECT_THAT(Refused("{tokenizer: {bos_token: {}}}"), HasSubstr("tokenizer.bos_token: must be"));
}

TEST_F(LlgtrtConfigTest, LimitsOfGrammarsAreOptions) {
  const char* const kLimits =
      "{llguidance: {limits: {step_max_items: 7, max_items_in_row: 1e3}, log_level: 2}}";
  EXPECT_TRUE(ReadJson5(kLimits)->SetOptions(values_).ok());
  const GrammarLimits limits = GrammarRows().Read(values_);
  EXPECT_EQ(limits.step_max_items, 7u);
  EXPECT_EQ(limits.max_items_in_row, 1000u);
  EXPECT_EQ(limits.step_lexer_fuel, GrammarLimits().step_lexer_fuel);
  EXPECT_EQ(limits.log_level, 2u);
  for (const char* bad :
       {"{llguidance: {limits: {step_max_items: 0}}}", "{llguidance: {log_level: 9}}"}) {
    EXPECT_THAT(ReadJson5(bad)->SetOptions(values_).message(), HasSubstr("is out of range")) << bad;
  }
}

TEST_F(LlgtrtConfigTest, WhatIsNotThereIsRefusedByName) {
  EXPECT_THAT(Refused("{py: {hf_model_dir: 'x'}}"), HasSubstr("py.hf_model_dir: is not supported"));
  EXPECT_TRUE(ReadJson5("{py: {input_processor: null, arguments: {}}}").ok());
  EXPECT_THAT(Refused("{runtime: {cross_kv_cache_fraction: 0.5}}"), HasSubstr("encoder-decoder"));
  EXPECT_THAT(Refused("{tokenizer: {json_start_token: '<x>'}}"), HasSubstr("<|python_tag|>"));
}

TEST_F(LlgtrtConfigTest, TheTokenThatOpensACallSelectsTheFormat) {
  const LlgtrtConfig config =
      ReadJson5("{tokenizer: {json_start_token: '<|python_tag|>'}}").value();
  ASSERT_TRUE(config.SetOptions(values_).ok());
  EXPECT_EQ(values_.Given(*values_.Find("tool_format")), "llama3");
}

TEST_F(LlgtrtConfigTest, RuntimeJsonHoldsEveryKeyThatCannotBeNull) {
  const auto read = [&](const std::string& text) {
    return LlgtrtConfig::Read({.configs = {}, .runtime = Write("runtime.json", text)})
        .status()
        .message();
  };
  EXPECT_THAT(read("{}"), HasSubstr("guaranteed_no_evict is missing"));
  EXPECT_THAT(read("{// comment\n}"), HasSubstr("runtime.json, line 1: not valid JSON: "));
  EXPECT_THAT(read("{\n\"max_batch_size\": 3\n\"x\": 1}"),
              HasSubstr("runtime.json, line 3: not valid JSON: "));
  EXPECT_EQ(read(kRuntime), "");
}

TEST_F(LlgtrtConfigTest, WhatIsShownReadsBackEqual) {
  const LlgtrtConfig config =
      ReadJson5("{runtime: {max_batch_size: 9}, tokenizer: {eos_token: 'a\\n'}}").value();
  const std::string shown = ShowLlgtrtConfig(config);
  EXPECT_THAT(shown, HasSubstr("    // Sequences that run in one step\n    max_batch_size: 9,\n"));
  EXPECT_THAT(shown, HasSubstr("  llguidance: {\n    limits: {\n"));
  EXPECT_EQ(ShowLlgtrtConfig(ReadJson5(shown).value()), shown);
}

TEST_F(LlgtrtConfigTest, KeysAreNamedOnce) {
  std::set<std::string_view> paths;
  for (const LlgtrtKey& key : LlgtrtKeys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.meaning.empty()) << key.path;
  }
}

}  // namespace
}  // namespace tandem::apps
