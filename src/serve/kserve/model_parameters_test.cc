#include "serve/kserve/model_parameters.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <model_config.pb.h>

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/testing/source_dir.h"
#include "runtime/engine_options.h"
#include "runtime/option_rows.h"

namespace tandem::serve::kserve {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

using Values = std::map<std::string, std::string>;

inference::ModelConfig Config(const std::vector<std::string>& inputs, const Values& values,
                              const std::string& backend = "python") {
  inference::ModelConfig config;
  config.set_backend(backend);
  for (const std::string& name : inputs) config.add_input()->set_name(name);
  for (const auto& [key, value] : values) {
    (*config.mutable_parameters())[key].set_string_value(value);
  }
  return config;
}
inference::ModelConfig Generator(const Values& values) {
  return Config({"input_ids", "request_output_len"}, values, "tensorrtllm");
}
inference::ModelConfig Bls(const Values& values) { return Config({"text_input"}, values); }

ModelParameters Read(const inference::ModelConfig& config) {
  return ReadModelParameters(config, "repo/model").value();
}
Status Refusal(const inference::ModelConfig& config) {
  const auto parameters = ReadModelParameters(config, "repo/model");
  return parameters.ok() ? Status() : parameters.status();
}

bool HasRow(ModelKind kind, std::string_view name) {
  for (const ParameterRow& row : ParameterRows()) {
    if (row.kind == kind && row.name == name) return true;
  }
  return false;
}

TEST(ModelParameters, EveryKnownParameterHasARow) {
  for (const std::string_view name : {"gpt_model_type",
                                      "gpt_model_path",
                                      "encoder_model_path",
                                      "max_beam_width",
                                      "max_tokens_in_paged_kv_cache",
                                      "kv_cache_free_gpu_mem_fraction",
                                      "cross_kv_cache_fraction",
                                      "kv_cache_host_memory_bytes",
                                      "kv_cache_onboard_blocks",
                                      "enable_kv_cache_reuse",
                                      "max_attention_window_size",
                                      "sink_token_length",
                                      "batch_scheduler_policy",
                                      "enable_chunked_context",
                                      "exclude_input_in_output",
                                      "normalize_log_probs",
                                      "decoding_mode",
                                      "medusa_choices",
                                      "eagle_choices",
                                      "lookahead_window_size",
                                      "lookahead_ngram_size",
                                      "lookahead_verification_set_size",
                                      "speculative_decoding_fast_logits",
                                      "gpu_device_ids",
                                      "participant_ids",
                                      "num_nodes",
                                      "lora_cache_optimal_adapter_size",
                                      "lora_cache_max_adapter_size",
                                      "lora_cache_gpu_memory_fraction",
                                      "lora_cache_host_memory_bytes",
                                      "gpu_weights_percent",
                                      "enable_context_fmha_fp32_acc",
                                      "multi_block_mode",
                                      "cuda_graph_mode",
                                      "cuda_graph_cache_size",
                                      "cancellation_check_period_ms",
                                      "stats_check_period_ms",
                                      "recv_poll_period_ms",
                                      "iter_stats_max_iterations",
                                      "request_stats_max_iterations",
                                      "guided_decoding_backend",
                                      "tokenizer_dir",
                                      "xgrammar_tokenizer_info_path",
                                      "executor_worker_path",
                                      "FORCE_CPU_ONLY_INPUT_TENSORS",
                                      "enable_trt_overlap",
                                      "max_num_sequences"}) {
    EXPECT_TRUE(HasRow(ModelKind::kTensorrtLlm, name)) << name;
  }
  for (const std::string_view name : {"tokenizer_dir", "tokenizer_type", "add_special_tokens",
                                      "visual_model_path", "gpt_model_path", "max_num_images"}) {
    EXPECT_TRUE(HasRow(ModelKind::kPreprocessing, name)) << name;
  }
  for (const std::string_view name : {"tokenizer_dir", "tokenizer_type", "skip_special_tokens"}) {
    EXPECT_TRUE(HasRow(ModelKind::kPostprocessing, name)) << name;
  }
  for (const std::string_view name :
       {"accumulate_tokens", "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name",
        "multimodal_encoders_name"}) {
    EXPECT_TRUE(HasRow(ModelKind::kBls, name)) << name;
  }
}

TEST(ModelParameters, EveryRowIsInTheDocumentation) {
  const std::string page = ReadTextFile(SourceDir() / "docs/formats/config_pbtxt.md").value();
  for (const ParameterRow& row : ParameterRows()) {
    EXPECT_THAT(page, HasSubstr(fmt::format("`{}`", row.name)));
    EXPECT_THAT(page, HasSubstr(std::string(row.meaning)));
  }
}

TEST(ModelParameters, EngineOptionsOfTheRowsExist) {
  const OptionValues options(EngineOptionRows().specs());
  for (const ParameterRow& row : ParameterRows()) {
    EXPECT_TRUE(row.option.empty() || options.Find(row.option) != nullptr) << row.name;
  }
}

TEST(ModelParameters, KindsAreKnownByTensorsWhateverTheName) {
  EXPECT_EQ(KindOf(Generator({})), ModelKind::kTensorrtLlm);
  EXPECT_EQ(KindOf(Config({"input_ids", "input_lengths", "request_output_len"}, {}, "")),
            ModelKind::kTensorrtLlm)
      << "a template's backend may not be filled in";
  EXPECT_EQ(KindOf(Config({"QUERY"}, {})), ModelKind::kPreprocessing);
  EXPECT_EQ(KindOf(Config({"TOKENS_BATCH"}, {})), ModelKind::kPostprocessing);
  EXPECT_EQ(KindOf(Bls({})), ModelKind::kBls);
  EXPECT_EQ(KindOf(Config({"text_input"}, {}, "mock_llm")), ModelKind::kOther);
  EXPECT_EQ(KindOf(Config({"QUERY"}, {}, "identity")), ModelKind::kOther);
  inference::ModelConfig ensemble = Bls({});
  ensemble.set_platform("ensemble");
  EXPECT_EQ(KindOf(ensemble), ModelKind::kEnsemble);
}

TEST(ModelParameters, AGeneratorsParametersBecomeEngineOptions) {
  const ModelParameters read = Read(Generator({{"max_tokens_in_paged_kv_cache", "2560"},
                                               {"kv_cache_free_gpu_mem_fraction", "0.5"},
                                               {"enable_kv_cache_reuse", "True"},
                                               {"enable_chunked_context", "0"},
                                               {"batch_scheduler_policy", "max_utilization"},
                                               {"exclude_input_in_output", "True"},
                                               {"gpt_model_type", "inflight_fused_batching"},
                                               {"gpt_model_path", " /engines/target "},
                                               {"gpu_device_ids", "1"},
                                               {"participant_ids", "2,3"}}));
  EXPECT_THAT(read.engine_options, ElementsAre(Pair("max_tokens_in_paged_kv_cache", "2560"),
                                               Pair("kv_cache_free_gpu_mem_fraction", "0.5"),
                                               Pair("enable_kv_cache_reuse", "true"),
                                               Pair("enable_chunked_context", "false"),
                                               Pair("batch_scheduler_policy", "max_utilization")));
  EXPECT_EQ(read.engine_dir, "/engines/target");
  EXPECT_TRUE(read.exclude_input_in_output);
  EXPECT_THAT(read.gpu_device_ids, ElementsAre(1));
  EXPECT_THAT(read.participant_ids, ElementsAre(2, 3));
  EXPECT_THAT(read.warnings, IsEmpty());
  EXPECT_THAT(read.ignored, IsEmpty());
}

TEST(ModelParameters, EmptyAndUnfilledValuesLeaveTheDefaults) {
  const ModelParameters read = Read(Generator({{"gpt_model_path", "${engine_dir}"},
                                               {"gpt_model_type", ""},
                                               {"decoding_mode", "${decoding_mode}"},
                                               {"kv_cache_free_gpu_mem_fraction", " "}}));
  EXPECT_EQ(read.engine_dir, "repo/model/1");
  EXPECT_THAT(read.engine_options, IsEmpty());
  EXPECT_FALSE(read.exclude_input_in_output);
  const ModelParameters bls = Read(Bls({{"tensorrt_llm_model_name", "${tensorrt_llm_model_name}"},
                                        {"tensorrt_llm_draft_model_name", ""}}));
  EXPECT_EQ(bls.target_model, "tensorrt_llm");
  EXPECT_EQ(bls.draft_model, "");
}

TEST(ModelParameters, ReadsPolicyBatchAndQueueOfTheConfigItself) {
  inference::ModelConfig config = Generator({});
  config.set_max_batch_size(4);
  config.mutable_model_transaction_policy()->set_decoupled(true);
  config.mutable_dynamic_batching()->mutable_default_queue_policy()->set_max_queue_size(9);
  const ModelParameters read = Read(config);
  EXPECT_EQ(read.max_batch_size, 4);
  EXPECT_TRUE(read.decoupled);
  EXPECT_EQ(read.max_queue_size, 9);
  EXPECT_THAT(read.engine_options, ElementsAre(Pair("max_queue_size", "9")));
  config.set_max_batch_size(-1);
  EXPECT_EQ(Refusal(config).field(), "max_batch_size");
}

TEST(ModelParameters, AllowingLargerBatchesThanTheEngineRunsMoreSequencesUnlessTheirNumberIsGiven) {
  inference::ModelConfig config = Generator({});
  config.set_max_batch_size(EngineOptions().max_batch_size);
  EXPECT_THAT(Read(config).engine_options, IsEmpty());
  config.set_max_batch_size(EngineOptions().max_batch_size + 1);
  EXPECT_THAT(Read(config).engine_options, ElementsAre(Pair("max_batch_size", "65")));
  config.set_max_batch_size(128);
  EXPECT_THAT(Read(config).engine_options, ElementsAre(Pair("max_batch_size", "128")));
  config = Generator({{"max_num_sequences", "16"}});
  config.set_max_batch_size(128);
  EXPECT_THAT(Read(config).engine_options, ElementsAre(Pair("max_batch_size", "16")));
  // Of a model that is no engine it says nothing about one.
  config = Bls({});
  config.set_max_batch_size(128);
  EXPECT_THAT(Read(config).engine_options, IsEmpty());
}

TEST(ModelParameters, AModelHasAllGpusOfItsFirstInstanceAndTheOthersAreNamed) {
  const ModelParameters read = Read(Generator({{"gpu_device_ids", "3,1;0; 2, 4"}}));
  EXPECT_THAT(read.gpu_device_ids, ElementsAre(3, 1));
  EXPECT_THAT(read.warnings,
              ElementsAre("parameter gpu_device_ids: the model runs once, on GPU 3,1; left out: an "
                          "instance on GPU 0, an instance on GPU 2,4"));
  EXPECT_THAT(Read(Generator({{"gpu_device_ids", "0;1"}})).warnings,
              ElementsAre(HasSubstr("left out: an instance on GPU 1")));
  EXPECT_THAT(Read(Generator({{"gpu_device_ids", "2"}})).warnings, IsEmpty());
  EXPECT_THAT(Read(Generator({})).gpu_device_ids, IsEmpty());
}

TEST(ModelParameters, TheModelTypeIsOneOfThree) {
  EXPECT_THAT(
      Read(Generator({{"gpt_model_type", "V1"}, {"batch_scheduler_policy", "max_utilization"}}))
          .engine_options,
      ElementsAre(Pair("batch_scheduler_policy", "static_batch")));
  EXPECT_THAT(Read(Generator({{"gpt_model_type", "inflight_batching"}})).engine_options, IsEmpty());
  const Status refusal = Refusal(Generator({{"gpt_model_type", "inflight"}}));
  EXPECT_THAT(refusal.message(), HasSubstr("Invalid gpt_model_type"));
  EXPECT_EQ(refusal.field(), "gpt_model_type");
}

TEST(ModelParameters, WordsThatCannotBeUsedAreWarnings) {
  const ModelParameters read = Read(Generator({{"batch_scheduler_policy", "guaranteed_completion"},
                                               {"enable_kv_cache_reuse", "yes"},
                                               {"exclude_input_in_output", "maybe"},
                                               {"enable_kv_cache_resue", "true"}}));
  EXPECT_THAT(read.engine_options,
              ElementsAre(Pair("batch_scheduler_policy", "guaranteed_no_evict")));
  EXPECT_THAT(read.warnings, Contains(HasSubstr("guaranteed_completion")));
  EXPECT_THAT(read.warnings, Contains(HasSubstr("parameter enable_kv_cache_reuse is true or false, "
                                                "not \"yes\"")));
  EXPECT_THAT(read.warnings, Contains(HasSubstr("exclude_input_in_output")));
  EXPECT_THAT(read.warnings, Contains("there is no parameter enable_kv_cache_resue (did you mean "
                                      "enable_kv_cache_reuse?); it is ignored"));
}

TEST(ModelParameters, ValuesThatAreNoNumbersAreRefusedByName) {
  for (const auto& [name, value] : Values{{"kv_cache_free_gpu_mem_fraction", "half"},
                                          {"max_tokens_in_paged_kv_cache", "many"},
                                          {"gpu_device_ids", "0,x"},
                                          {"gpu_device_ids", "0;;1"},
                                          {"participant_ids", "-1"}}) {
    const Status refusal = Refusal(Generator({{name, value}}));
    EXPECT_EQ(refusal.code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(refusal.field(), name);
    EXPECT_THAT(refusal.message(), HasSubstr(value));
  }
}

TEST(ModelParameters, IgnoredParametersAreNamedUnlessTheyChangeNothing) {
  const ModelParameters read = Read(Generator({{"max_attention_window_size", "2560"},
                                               {"max_beam_width", "1"},
                                               {"gpu_weights_percent", "1.0"},
                                               {"decoding_mode", "top_k_top_p"},
                                               {"enable_trt_overlap", "True"}}));
  EXPECT_THAT(read.ignored, ElementsAre(HasSubstr("max_attention_window_size: "),
                                        HasSubstr("enable_trt_overlap: ")));
  EXPECT_THAT(Read(Generator({{"max_beam_width", "4"}})).ignored, ElementsAre(HasSubstr("beam")));
}

TEST(ModelParameters, WhatIsNotServedIsRefusedByName) {
  for (const auto& [name, value] :
       Values{{"decoding_mode", "medusa"}, {"encoder_model_path", "/e"}, {"num_nodes", "2"}}) {
    const Status refusal = Refusal(Generator({{name, value}}));
    EXPECT_EQ(refusal.code(), Code::kUnimplemented) << name;
    EXPECT_EQ(refusal.field(), name);
  }
  EXPECT_EQ(Refusal(Config({"QUERY"}, {{"visual_model_path", "/v"}})).field(), "visual_model_path");
  EXPECT_EQ(Refusal(Bls({{"multimodal_encoders_name", "m"}})).field(), "multimodal_encoders_name");
}

TEST(ModelParameters, StagesHaveTheirOwnParametersAndWordsOfTruth) {
  const ModelParameters before = Read(Config(
      {"QUERY"},
      {{"tokenizer_dir", "meta/llama"}, {"tokenizer_type", "llama"}, {"add_special_tokens", "N"}}));
  EXPECT_EQ(before.tokenizer_dir, "meta/llama");
  EXPECT_FALSE(before.add_special_tokens);
  EXPECT_THAT(before.warnings, IsEmpty());
  const ModelParameters after =
      Read(Config({"TOKENS_BATCH"}, {{"skip_special_tokens", "no"}, {"accumulate_tokens", "1"}}));
  EXPECT_FALSE(after.skip_special_tokens);
  EXPECT_TRUE(before.skip_special_tokens);
  EXPECT_THAT(after.ignored, IsEmpty());
  EXPECT_THAT(after.warnings, ElementsAre(HasSubstr("accumulate_tokens")));
  const ModelParameters bls =
      Read(Bls({{"accumulate_tokens", "T"}, {"tensorrt_llm_draft_model_name", "small"}}));
  EXPECT_THAT(bls.ignored, IsEmpty());  // it is always so
  EXPECT_EQ(bls.draft_model, "small");
  EXPECT_THAT(Refusal(Config({"QUERY"}, {{"tokenizer_type", "bert"}})).message(),
              HasSubstr("Unexpected tokenizer type: bert"));
}

}  // namespace
}  // namespace tandem::serve::kserve
