#include "runtime/option_rows.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

EngineOptions With(std::string_view name, const std::string& value) {
  OptionValues values(EngineOptionRows().specs());
  const Status set = values.Set(name, {value}, name);
  EXPECT_TRUE(set.ok()) << set.message();
  return EngineOptionsFrom(values);
}

TEST(EngineOptionRowsTest, WithoutOptionsTheDefaultsAreThoseOfEngineOptions) {
  const EngineOptions made = EngineOptionsFrom(OptionValues(EngineOptionRows().specs()));
  const EngineOptions defaults;
  EXPECT_EQ(made.max_batch_size, defaults.max_batch_size);
  EXPECT_EQ(made.max_num_tokens, defaults.max_num_tokens);
  EXPECT_EQ(made.max_queue_size, defaults.max_queue_size);
  EXPECT_EQ(made.max_logits_bytes, defaults.max_logits_bytes);
  EXPECT_EQ(made.kv_cache_free_fraction, defaults.kv_cache_free_fraction);
  EXPECT_EQ(made.kv_cache_dtype, defaults.kv_cache_dtype);
  EXPECT_EQ(made.block_tokens, defaults.block_tokens);
  EXPECT_EQ(made.enable_prefix_reuse, defaults.enable_prefix_reuse);
  EXPECT_EQ(made.enable_chunked_prefill, defaults.enable_chunked_prefill);
  EXPECT_EQ(made.policy, defaults.policy);
  EXPECT_EQ(made.draft_mode, defaults.draft_mode);
  EXPECT_EQ(made.max_draft_len, defaults.max_draft_len);
  EXPECT_EQ(made.ratio_acceptance, defaults.ratio_acceptance);
}

TEST(EngineOptionRowsTest, TheTableTellsTheDefaultOfTheMember) {
  const OptionValues values(EngineOptionRows().specs());
  EXPECT_EQ(values.Given(*values.Find("max_batch_size")),
            std::to_string(EngineOptions().max_batch_size));
  EXPECT_EQ(values.Given(*values.Find("kv_cache_free_gpu_mem_fraction")), "0.5");
  EXPECT_EQ(values.Given(*values.Find("enable_kv_cache_reuse")), "true");
  EXPECT_EQ(values.Given(*values.Find("use_draft_logits")), "");
}

TEST(EngineOptionRowsTest, EveryRowSetsWhatItNames) {
  EXPECT_EQ(With("max_batch_size", "7").max_batch_size, 7);
  EXPECT_EQ(With("max_logits_bytes", "0").max_logits_bytes, 0);
  EXPECT_EQ(With("max_logits_bytes", "3MiB").max_logits_bytes, 3 << 20);
  EXPECT_EQ(With("kv_cache_bytes", "3G").kv_cache_bytes, int64_t{3} << 30);
  EXPECT_EQ(With("kv_cache_free_gpu_memory_fraction", "0.25").kv_cache_free_fraction, 0.25);
  EXPECT_EQ(With("kv_cache_dtype", "fp8").kv_cache_dtype, DType::kF8E4M3);
  EXPECT_EQ(With("kv_cache_dtype", "int8").kv_cache_dtype, DType::kI8);
  EXPECT_FALSE(With("enable_kv_cache_reuse", "false").enable_prefix_reuse);
  EXPECT_FALSE(With("kv_cache_enable_block_reuse", "false").enable_prefix_reuse);
  EXPECT_FALSE(With("enable_chunked_context", "disable").enable_chunked_prefill);
  EXPECT_TRUE(With("enable_batch_size_tuning", "true").enable_batch_size_tuning);
  EXPECT_TRUE(With("enable_max_num_tokens_tuning", "true").enable_max_num_tokens_tuning);
  EXPECT_EQ(With("batch_scheduler_policy", "static_batch").policy, SchedulerPolicy::kStaticBatch);
  EXPECT_EQ(With("tokens_per_block", "64").block_tokens, 64);
  EXPECT_TRUE(With("use_draft_logits", "true").ratio_acceptance);
  EXPECT_EQ(With("seed", "5").seed, 5u);
  EXPECT_EQ(With("lookup_ngram", "3").lookup_ngram, 3);
  EXPECT_EQ(With("steps_in_flight", "1").steps_in_flight, 1);
}

TEST(EngineOptionRowsTest, ADraftLengthIsFixedAndNoDraftGoesOverIt) {
  EXPECT_EQ(With("draft_len", "12").draft_mode, DraftMode::kFixed);
  EXPECT_EQ(With("draft_len", "12").max_draft_len, 12);
  EXPECT_EQ(With("no_draft", "true").draft_mode, DraftMode::kOff);
  OptionValues values(EngineOptionRows().specs());
  ASSERT_TRUE(values.Set("draft_len", {"4"}, "x").ok());
  ASSERT_TRUE(values.Set("no_draft", {"true"}, "x").ok());
  EXPECT_EQ(EngineOptionsFrom(values).draft_mode, DraftMode::kOff);
}

TEST(EngineOptionRowsTest, OnAGpuWhatIsLeftOutHasOtherValues) {
  OptionValues values(EngineOptionRows().specs());
  EXPECT_EQ(EngineOptionsFrom(values, true).steps_in_flight, 1);
  EXPECT_EQ(EngineOptionsFrom(values, true).kv_cache_free_fraction, 0.9);
  EXPECT_EQ(EngineOptionsFrom(values, false).steps_in_flight, 0);
  ASSERT_TRUE(values.Set("steps_in_flight", {"0"}, "x").ok());
  EXPECT_EQ(EngineOptionsFrom(values, true).steps_in_flight, 0);
}

TEST(EngineOptionRowsTest, AnEngineTakesWhatTheCommandLineTakes) {
  EXPECT_TRUE(EngineOptionRows().Check(EngineOptions()).ok());
  const auto field_at_fault = [](auto change) {
    EngineOptions options;
    change(options);
    return EngineOptionRows().Check(options).field();
  };
  EXPECT_EQ(field_at_fault([](EngineOptions& o) { o.max_batch_size = 0; }), "max_batch_size");
  EXPECT_EQ(field_at_fault([](EngineOptions& o) { o.max_num_tokens = 0; }), "max_num_tokens");
  EXPECT_EQ(field_at_fault([](EngineOptions& o) { o.max_num_tokens = 1; }), "");
  EXPECT_EQ(field_at_fault([](EngineOptions& o) { o.steps_in_flight = 2; }), "steps_in_flight");
  EXPECT_EQ(field_at_fault([](EngineOptions& o) { o.block_tokens = 24; }), "tokens_per_block");
  EXPECT_EQ(field_at_fault([](EngineOptions& o) { o.kv_cache_free_fraction = 1.5; }),
            "kv_cache_free_gpu_mem_fraction");
}

}  // namespace
}  // namespace tandem
