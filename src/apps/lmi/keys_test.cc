// Every key of an LMI container's configuration: what it does, or that it is refused or told to
// have no effect. A key without a row here fails the last test.
#include "apps/lmi/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "apps/lmi/config.h"
#include "apps/lmi/key_rows.h"
#include "apps/models/session.h"
#include "apps/server/serve_options.h"

namespace tandem::apps {
namespace {

using serve::lmi::OutputFormatter;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

LmiConfig Read(const std::string& key, const std::string& value, LmiContext context = {}) {
  LmiGivenKeys given;
  const auto is_of = [&](std::span<const LmiKey> keys) {
    return std::ranges::any_of(keys, [&](const LmiKey& row) { return row.name == key; });
  };
  // Parts of a quantization have an effect beside it alone.
  if (is_of(lmi_rows::QuantizationKeys())) given["option.quantize"] = {"awq", "FILE"};
  given[key] = {value, "FILE: " + key};
  const bool is_server = is_of(lmi_rows::ServerKeys());
  auto config =
      is_server ? LmiConfig::ForServer(given, context) : LmiConfig::ForModel(given, context);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *std::move(config) : LmiConfig();
}

// A key that sets an option: the option's value.
struct SetsRow {
  const char* key;
  const char* value;
  const char* option;
  const char* becomes;
};
constexpr SetsRow kSets[] = {
    {"option.dtype", "fp16", "dtype", "float16"},
    {"option.dtype", "bf16", "dtype", "bfloat16"},
    {"option.dtype", "fp32", "dtype", "float32"},
    {"option.tensor_parallel_degree", "4", "tensor_parallel_size", "4"},
    {"option.tensor_parallel_degree", "0", "tensor_parallel_size", "1"},
    {"option.pipeline_parallel_degree", "2", "pipeline_parallel_size", "2"},
    {"option.pipeline_parallel_size", "2", "pipeline_parallel_size", "2"},
    {"option.max_rolling_batch_size", "16", "max_batch_size", "16"},
    {"option.max_num_sequences", "8", "max_batch_size", "8"},
    {"option.max_num_sequences", "64", "max_batch_size", "32"},
    {"option.max_batch_size", "4", "max_batch_size", "4"},
    {"option.max_input_len", "256", "max_input_len", "256"},
    {"option.max_input_len", "256", "max_seq_len", "768"},
    {"option.max_output_len", "256", "max_seq_len", "1280"},
    {"option.max_seq_len", "4096", "max_seq_len", "4096"},
    {"option.predict_timeout", "30", "max_queue_wait", "30"},
    {"option.spec_length", "5", "draft_len", "5"},
    {"job_queue_size", "7", "max_queue_size", "7"},
    {"load_on_devices", "1", "device", "cuda:1"},
    {"load_on_devices", "2;3", "device", "cuda:2"},
    {"load_on_devices", "cpu", "device", "cpu"},
    {"option.tokens_per_block", "32", "tokens_per_block", "32"},
    {"option.batch_scheduler_policy", "guaranteed_no_evict", "batch_scheduler_policy",
     "guaranteed_no_evict"},
    {"option.kv_cache_free_gpu_mem_fraction", "0.5", "kv_cache_free_gpu_mem_fraction", "0.5"},
    {"option.enable_trt_overlap", "true", "steps_in_flight", "1"},
    {"option.enable_trt_overlap", "False", "steps_in_flight", "0"},
    {"option.enable_kv_cache_reuse", "True", "enable_kv_cache_reuse", "true"},
    {"option.enable_kv_cache_reuse", "false", "enable_kv_cache_reuse", "false"},
    {"option.baichuan_model_version", "v2_7b", "baichuan_model_version", "v2_7b"},
    {"option.chatglm_model_version", "chatglm3_6b", "chatglm_model_version", "chatglm3_6b"},
    {"option.gpt_model_version", "starcoder", "gpt_model_version", "starcoder"},
    {"option.rotary_base", "500000.0", "rotary_base", "500000.0"},
    {"option.rotary_dim", "64", "rotary_dim", "64"},
    {"option.rotary_scaling_type", "linear", "rotary_scaling_type", "linear"},
    {"option.rotary_scaling_factor", "2.0", "rotary_scaling_factor", "2.0"},
    {"option.max_num_tokens", "4096", "max_num_tokens", "4096"},
    {"option.max_rolling_batch_prefill_tokens", "512", "max_num_tokens", "512"},
    {"option.enable_chunked_prefill", "false", "enable_chunked_context", "false"},
    {"option.enable_block_reuse", "false", "enable_kv_cache_reuse", "false"},
    {"option.max_tokens", "1000", "max_tokens_in_paged_kv_cache", "1000"},
    {"option.free_gpu_memory_fraction", "0.25", "kv_cache_free_gpu_mem_fraction", "0.25"},
    {"option.host_cache_size", "1048576", "kv_host_cache_bytes", "1048576"},
    {"option.onboard_blocks", "false", "kv_onboard_blocks", "false"},
    {"option.secondary_offload_min_priority", "36", "kv_offload_min_priority", "36"},
    {"option.event_buffer_max_size", "9", "kv_event_buffer", "9"},
    {"option.enable_overlap_scheduler", "true", "steps_in_flight", "1"},
    {"option.kv_cache_dtype", "fp8", "kv_cache_dtype", "fp8"},
    {"option.quantize", "awq", "quantize", "awq"},
    {"option.quantize", "smoothquant", "quantize", "smoothquant"},
    {"option.quantize", "fp8", "quantize", "fp8"},
    {"option.quantize", "none", "quantize", "none"},
    {"option.smoothquant_alpha", "0.5", "smoothquant_alpha", "0.5"},
    {"option.smoothquant_per_token", "True", "smoothquant_per_token", "true"},
    {"option.awq_format", "int4_awq", "awq_format", "int4_awq"},
    {"option.q_format", "int4_awq", "awq_format", "int4_awq"},
    {"option.awq_calib_size", "16", "calib_size", "16"},
    {"option.calib_size", "24", "calib_size", "24"},
    {"option.calib_batch_size", "8", "calib_batch_size", "8"},
    {"option.awq_block_size", "64", "awq_block_size", "64"},
    {"option.calib_dataset", "texts.txt", "calib_dataset", "texts.txt"},
    {"cors_allowed_origin", "https://chat.example", "cors_origins", "https://chat.example"},
    {"number_of_netty_threads", "4", "http_threads", "4"},
    {"download_dir", "/d", "download_dir", "/d"},
};

// A key that sets a member.
struct MemberRow {
  const char* key;
  const char* value;
  std::function<bool(const LmiSettings&)> is_set;
};
const std::vector<MemberRow>& Members() {
  using S = const LmiSettings&;
  static const std::vector<MemberRow> rows = {
      {"option.model_id", "org/model", [](S s) { return s.sources.model_id == "org/model"; }},
      {"option.revision", "v2", [](S s) { return s.sources.revision == "v2"; }},
      {"option.draft_model_id", "d", [](S s) { return s.sources.draft_model_id == "d"; }},
      {"option.tokenizer", "t", [](S s) { return s.sources.tokenizer == "t"; }},
      {"option.tokenizer_revision", "v1", [](S s) { return s.sources.tokenizer_revision == "v1"; }},
      {"option.entryPoint", "djl_python.tensorrt_llm",
       [](S s) { return s.sources.entry_point == "djl_python.tensorrt_llm"; }},
      {"option.predict_timeout", "30",
       [](S s) { return s.http.predict_timeout == std::chrono::seconds(30); }},
      {"option.output_formatter", "json",
       [](S s) { return s.http.output_formatter == OutputFormatter::kJson; }},
      {"option.output_formatter", "jsonlines",
       [](S s) { return s.http.output_formatter == OutputFormatter::kJsonLines; }},
      {"option.output_formatter", "sse",
       [](S s) { return s.http.output_formatter == OutputFormatter::kSse; }},
      {"option.output_formatter", "none",
       [](S s) { return s.http.output_formatter == OutputFormatter::kNone; }},
      {"option.output_formatter", "xml",
       [](S s) { return s.http.output_formatter == OutputFormatter::kByStream; }},
      {"option.tgi_compat", "true", [](S s) { return s.http.tgi_compat; }},
      {"job_queue_size", "7", [](S s) { return s.http.job_queue_size == 7; }},
      {"batch_size", "4", [](S s) { return s.http.batch_size == 4; }},
      {"max_batch_delay", "5", [](S s) { return s.http.max_batch_delay_ms == 5; }},
      {"max_idle_time", "6", [](S s) { return s.http.max_idle_s == 6; }},
      {"inference_address", "http://127.0.0.1:9000",
       [](S s) { return s.inference_address == "http://127.0.0.1:9000"; }},
      {"port", "9000", [](S s) { return s.port == 9000; }},
      {"model_store", "/models", [](S s) { return s.model_store == "/models"; }},
      {"load_models", "NONE", [](S s) { return s.load_models == "NONE"; }},
      {"allow_multi_status", "true", [](S s) { return s.http.allow_multi_status; }},
      {"max_request_size", "1000", [](S s) { return s.http.max_request_size == 1000; }},
      {"chunked_read_timeout", "9",
       [](S s) { return s.http.chunked_read_timeout == std::chrono::seconds(9); }},
      {"error_rate_wlm", "20/1m",
       [](S s) {
         return s.http.error_rates.wlm->errors == 20 &&
                s.http.error_rates.wlm->within == std::chrono::minutes(1);
       }},
      {"error_rate_server", "3/h",
       [](S s) { return s.http.error_rates.server->within == std::chrono::hours(1); }},
      {"error_rate_model", "3/10s",
       [](S s) { return s.http.error_rates.model->within == std::chrono::seconds(10); }},
      {"error_rate_any", "3/2d",
       [](S s) { return s.http.error_rates.any->within == std::chrono::hours(48); }},
      {"bad_request_http_code", "422", [](S s) { return s.http.http_codes.bad_request == 422; }},
      {"wlm_error_http_code", "500", [](S s) { return s.http.http_codes.wlm_error == 500; }},
      {"throttle_error_http_code", "429",
       [](S s) { return s.http.http_codes.throttle_error == 429; }},
      {"timeout_http_code", "408", [](S s) { return s.http.http_codes.timeout == 408; }},
      {"server_error_http_code", "503", [](S s) { return s.http.http_codes.server_error == 503; }},
      {"request_id_header_key", "X-Request-Id",
       [](S s) { return s.http.request_id_header == "x-request-id"; }},
      {"certificate_file", "c.pem", [](S s) { return s.certificate_file == "c.pem"; }},
      {"private_key_file", "k.pem", [](S s) { return s.private_key_file == "k.pem"; }},
      {"health_check_override", "true", [](S s) { return s.http.keep_healthy; }},
  };
  return rows;
}

// A value that is refused, a part of the message, and a value that is taken.
struct RefusedRow {
  const char* key;
  const char* value;
  const char* says;
  const char* taken;
};
constexpr RefusedRow kRefused[] = {
    {"engine", "PyTorch", "is for other kinds of models", "MPI"},
    {"option.dtype", "int8", "smoothquant", "auto"},
    {"option.rolling_batch", "disable", "is refused", "trtllm"},
    {"option.entryPoint", "model.py", "no Python is run", "djl_python.huggingface"},
    {"option.bedrock_compat", "true", "Bedrock", "false"},
    {"option.enable_lora", "True", "merge the adapter", "False"},
    {"option.task", "feature-extraction", "text is generated here", "text-generation"},
    {"option.quantize", "bitsandbytes8", "must be smoothquant, awq or fp8", "awq"},
    {"option.awq_format", "int8_awq", "must be int4_awq", "int4_awq"},
    {"option.skip_tokenizer_init", "true", "without text", "false"},
    {"option.load_format", "dummy", "is no format", "auto"},
    {"option.pipeline_parallel_degree", "0", "must be an integer from 1 to 64", "1"},
    {"option.max_rolling_batch_size", "many", "must be an integer from 1 to 4096", "1"},
    {"option.tgi_compat", "yes", "must be true or false", "1"},
    {"option.kv_cache_dtype", "nvfp4", "must be auto or fp8", "auto"},
    {"load_on_devices", "gpu", "must be an integer", "*"},
    {"keystore", "keys.p12", "PEM", ""},
    {"model_url_pattern", "s3://.*", "not checked", ""},
    {"error_rate_any", "20", "as 20/1m", "20/m"},
    {"error_rate_any", "20/1y", "as 20/1m", "20/30s"},
    {"bad_request_http_code", "200", "from 400 to 599", "400"},
};

// Keys without effect, with a value of which somebody could expect one.
constexpr const char* kNoEffect[][2] = {
    {"option.trust_remote_code", "true"},
    {"option.parallel_loading", "true"},
    {"option.model_loading_timeout", "60"},
    {"option.enable_streaming", "true"},
    {"option.waiting_steps", "5"},
    {"option.mpi_mode", "true"},
    {"option.async_mode", "true"},
    {"option.enable_venv", "true"},
    {"option.max_output_size", "1"},
    {"retry_threshold", "3"},
    {"log_request_metric", "true"},
    {"metrics_aggregation", "1"},
    {"minWorkers", "2"},
    {"maxWorkers", "2"},
    {"gpu.minWorkers", "2"},
    {"gpu.maxWorkers", "2"},
    {"cpu.minWorkers", "2"},
    {"cpu.maxWorkers", "2"},
    {"required_memory_mb", "1"},
    {"gpu.required_memory_mb", "1"},
    {"reserved_memory_mb", "1"},
    {"gpu.reserved_memory_mb", "1"},
    {"option.use_custom_all_reduce", "true"},
    {"option.multi_block_mode", "true"},
    {"option.use_fused_mlp", "true"},
    {"option.smoothquant_per_channel", "true"},
    {"option.multi_query_mode", "true"},
    {"option.use_fp8_context_fmha", "true"},
    {"option.enforce_eager", "true"},
    {"option.logits_dtype", "fp16"},
    {"option.trtllm_checkpoint_path", "/tmp"},
    {"option.num_checkpoint_workers", "2"},
    {"option.num_engine_workers", "2"},
    {"option.load_by_shard", "true"},
    {"option.tokenizer_mode", "slow"},
    {"option.context_parallel_size", "2"},
    {"option.moe_tensor_parallel_size", "2"},
    {"option.moe_expert_parallel_size", "2"},
    {"option.enable_attention_dp", "true"},
    {"option.auto_parallel", "true"},
    {"option.guided_decoding_backend", "xgrammar"},
    {"option.iter_stats_max_iterations", "5"},
    {"option.embedding_parallel_mode", "NONE"},
    {"option.enable_build_cache", "false"},
    {"option.normalize_log_probs", "true"},
    {"option.gather_generation_logits", "true"},
    {"option.max_beam_width", "4"},
    {"option.backend", "pytorch"},
    {"option.max_attention_window", "[4096]"},
    {"option.sink_token_length", "4"},
    {"option.cross_kv_cache_fraction", "0.5"},
    {"option.attn_backend", "FLASHINFER"},
    {"option.use_cuda_graph", "true"},
    {"option.moe_backend", "TRTLLM"},
    {"management_address", "http://127.0.0.1:8081"},
    {"wait_model_loading", "false"},
    {"cors_allowed_methods", "GET"},
    {"cors_allowed_headers", "X-A"},
    {"keystore_pass", "x"},
    {"keystore_type", "PKCS12"},
    {"netty_client_threads", "2"},
    {"plugin_folder", "/p"},
    {"fail_fast", "true"},
    {"features", "vllm"},
};

TEST(LmiKeys, SetOptions) {
  const std::vector<OptionSpec> specs = SessionOptionRows(ServeOptionRows());
  for (const SetsRow& row : kSets) {
    const LmiConfig config = Read(row.key, row.value);
    const auto& options = config.settings().options;
    const auto found = options.find(row.option);
    ASSERT_NE(found, options.end()) << row.key;
    EXPECT_EQ(found->second, row.becomes) << row.key;
    OptionValues values(specs);
    const Status set = config.SetOptions(values);
    EXPECT_TRUE(set.ok()) << row.key << ": " << set.message();
    EXPECT_EQ(values.Given(*values.Find(row.option)), row.becomes) << row.key;
  }
}

TEST(LmiKeys, SetMembers) {
  for (const MemberRow& row : Members()) {
    EXPECT_TRUE(row.is_set(Read(row.key, row.value).settings())) << row.key << "=" << row.value;
  }
}

TEST(LmiKeys, AreRefusedByName) {
  for (const RefusedRow& row : kRefused) {
    LmiGivenKeys given;
    given[row.key] = {row.value, std::string("FILE: ") + row.key};
    const auto model = LmiConfig::ForModel(given, {});
    const auto server = LmiConfig::ForServer(given, {});
    const Status status = model.ok() ? server.status() : model.status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << row.key << "=" << row.value;
    EXPECT_THAT(status.message(), HasSubstr(row.says));
    EXPECT_THAT(status.message(), HasSubstr(std::string("FILE: ") + row.key));
    Read(row.key, row.taken);
  }
}

TEST(LmiKeys, WithoutEffectAreToldWithTheReason) {
  for (const auto& [key, value] : kNoEffect) {
    const LmiConfig config = Read(key, value);
    const std::string_view reason = FindLmiKey(key)->note;
    EXPECT_THAT(config.notes(), Contains(HasSubstr(std::string(reason)))) << key;
  }
}

TEST(LmiKeys, DefaultsAreNotToldToHaveNoEffect) {
  EXPECT_THAT(Read("option.tensor_parallel_degree", "1").notes(), IsEmpty());
  EXPECT_THAT(Read("option.tensor_parallel_degree", "max").notes(), IsEmpty());
  EXPECT_THAT(Read("option.use_custom_all_reduce", "false").notes(), IsEmpty());
}

TEST(LmiKeys, EachHasARowInThisTest) {
  std::set<std::string_view> tested;
  for (const SetsRow& row : kSets) tested.insert(row.key);
  for (const MemberRow& row : Members()) tested.insert(row.key);
  for (const RefusedRow& row : kRefused) tested.insert(row.key);
  for (const auto& row : kNoEffect) tested.insert(row[0]);
  std::set<std::string_view> names;
  for (const LmiKeyGroup& group : LmiKeyGroups()) {
    for (const LmiKey& key : group.keys) {
      EXPECT_TRUE(names.insert(key.name).second) << key.name << " stands twice in the table";
      EXPECT_TRUE(tested.contains(key.name)) << key.name;
      EXPECT_EQ(key.effect == LmiEffect::kNone, !key.take) << key.name;
      EXPECT_TRUE(!key.note.empty() || !key.option.empty()) << key.name;
    }
  }
  for (const std::string_view name : tested) EXPECT_TRUE(names.contains(name)) << name;
}

TEST(LmiKeys, ActOnOptionsOfTheServer) {
  const std::vector<OptionSpec> specs = SessionOptionRows(ServeOptionRows());
  const OptionValues values(specs);
  for (const LmiKeyGroup& group : LmiKeyGroups()) {
    for (const LmiKey& key : group.keys) {
      if (key.option.empty()) continue;
      EXPECT_NE(values.Find(key.option), nullptr) << key.name;
    }
  }
}

TEST(LmiKeys, HaveTheDefaultOfTheirRelease) {
  const LmiKey& key = *FindLmiKey("option.max_rolling_batch_size");
  EXPECT_EQ(key.DefaultOf(26), "32");
  EXPECT_EQ(key.DefaultOf(27), "256");
  EXPECT_EQ(key.DefaultOf(33), "256");
  EXPECT_EQ(key.DefaultOf(36), "32");
  EXPECT_EQ(FindLmiKey("option.max_num_tokens")->DefaultOf(26), "");
}

TEST(LmiKeys, CleanValues) {
  bool had_comment = false;
  const LmiKey& number = *FindLmiKey("option.max_input_len");
  EXPECT_EQ(CleanLmiValue(number, "256 # default is 1024", had_comment), "256");
  EXPECT_TRUE(had_comment);
  EXPECT_EQ(CleanLmiValue(number, " 256\t", had_comment), "256");
  EXPECT_FALSE(had_comment);
  EXPECT_EQ(CleanLmiValue(number, "256#x", had_comment), "256#x") << "no blank before it";
  EXPECT_EQ(CleanLmiValue(*FindLmiKey("option.model_id"), "/m/a #1", had_comment), "/m/a #1")
      << "a name may hold it";
  EXPECT_FALSE(had_comment);
}

}  // namespace
}  // namespace tandem::apps
