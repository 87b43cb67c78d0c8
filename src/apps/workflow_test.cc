// The verbs in this process, from a Hugging Face folder to an engine: the embedded draft model is
// small enough.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/testing/call.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/testing/source_dir.h"

namespace tandem::apps {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class WorkflowTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::filesystem::path(std::filesystem::path(::testing::TempDir()) /
                                        ("tandem_workflow_test." + std::to_string(::getpid())));
    std::filesystem::create_directories(*folder_);
    model_ = new std::string((SourceDir() / "models/dictionary/draft").string());
    checkpoint_ = new std::string((*folder_ / "checkpoint").string());
    engine_ = new std::string((*folder_ / "engine").string());
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*folder_);
    delete folder_;
    delete model_;
    delete checkpoint_;
    delete engine_;
  }

  // The three steps, in this order, as one test: each reads what the one before wrote.
  static std::filesystem::path* folder_;
  static std::string* model_;
  static std::string* checkpoint_;
  static std::string* engine_;
};

std::filesystem::path* WorkflowTest::folder_ = nullptr;
std::string* WorkflowTest::model_ = nullptr;
std::string* WorkflowTest::checkpoint_ = nullptr;
std::string* WorkflowTest::engine_ = nullptr;

TEST_F(WorkflowTest, ConvertNamesOptionsThatDoNothing) {
  const std::string out = (*folder_ / "idle").string();
  const Ran ran = Call({"convert", *model_, "--output_dir", out, "--per_token", "--per_group",
                        "--quant_ckpt_path", "elsewhere"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("--per_token has no effect without --smoothquant"));
  EXPECT_THAT(ran.err, HasSubstr("--per_group has no effect without --use_weight_only"));
  EXPECT_THAT(ran.err, HasSubstr("--quant_ckpt_path has no effect"));
}

TEST_F(WorkflowTest, ConvertCalibratesNoCacheForWeightsThatAreQuantized) {
  const std::string quantized = (*folder_ / "gptq").string();
  const Ran made = Call({"quantize", *model_, "--output_dir", quantized, "--qformat", "int4_wo",
                         "--export_format", "hf"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Ran ran = Call({"convert", *model_, "--output_dir", (*folder_ / "cache").string(),
                        "--use_weight_only", "--weight_only_precision", "int4_gptq",
                        "--quant_ckpt_path", quantized, "--int8_kv_cache"});
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("--int8_kv_cache: scales of keys and values are calibrated"));
}

TEST_F(WorkflowTest, BuildSaysThatItRoundsNothing) {
  const Ran ran = Call({"build", "--model_dir", *model_, "--output_dir",
                        (*folder_ / "plain").string(), "--use_weight_only"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("use_weight_only: weights stay in bf"));
  EXPECT_THAT(ran.err, HasSubstr("tandem convert"));
}

TEST_F(WorkflowTest, ConvertBuildInspectPlan) {
  const Ran converted = Call({"convert", *model_, "--output_dir", *checkpoint_, "--load_by_shard",
                              "--tp_size", "2", "--json"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  EXPECT_EQ(json::parse(converted.out)["tp_size"], 2);
  EXPECT_THAT(converted.err, HasSubstr("accepted without effect"));
  EXPECT_THAT(converted.err, HasSubstr("load_by_shard"));

  const Ran built = Call({"build", "--checkpoint_dir", *checkpoint_, "--gather_generation_logits",
                          "--gemm_plugin=fp8", "--output_dir", *engine_, "--max_batch_size", "4",
                          "--max_seq_len", "128", "--json"});
  ASSERT_EQ(built.code, 0) << built.err;
  EXPECT_EQ(json::parse(built.out)["max_batch_size"], 4);
  const std::string config = *ReadTextFile(std::filesystem::path(*engine_) / "config.json");
  EXPECT_THAT(config, HasSubstr("gather_generation_logits"));
  EXPECT_THAT(config, HasSubstr("fp8"));

  for (const std::string& path : {*model_, *checkpoint_, *engine_}) {
    const Ran inspected = Call({"inspect", path, "--check", "--tensors"});
    EXPECT_EQ(inspected.code, 0) << inspected.err;
    EXPECT_THAT(inspected.out, HasSubstr("LlamaForCausalLM"));
    EXPECT_THAT(inspected.out, HasSubstr("each is a finite number"));
  }
  const json inspected = json::parse(Call({"inspect", *engine_, "--json"}).out);
  EXPECT_EQ(inspected["kind"], "engine");
  EXPECT_EQ(inspected["limits"]["max_batch_size"], 4);
  EXPECT_EQ(inspected["limits"]["max_seq_len"], 128);
  EXPECT_THAT(Call({"inspect", *engine_}).out, HasSubstr("limits        4 sequences"));
  EXPECT_FALSE(json::parse(Call({"inspect", *model_, "--json"}).out).contains("limits"));

  // What was asked for beyond the engine's limits is lowered, and said so.
  const Ran planned =
      Call({"plan", *engine_, "--device", "cpu", "--max_batch_size", "64", "--json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_EQ(json::parse(planned.out)["max_batch_size"], 4);
  EXPECT_EQ(json::parse(planned.out)["max_seq_len"], 128);
  EXPECT_THAT(planned.err, HasSubstr("--max_batch_size 64: the engine was built for 4"));
}

// The old command lines name the lengths of larger models.
TEST_F(WorkflowTest, AnEngineBuiltForMorePositionsThanItsModelHasRuns) {
  const std::string checkpoint = (*folder_ / "positions_checkpoint").string();
  const std::string engine = (*folder_ / "positions_engine").string();
  ASSERT_EQ(Call({"convert", *model_, "--output_dir", checkpoint}).code, 0);
  const Ran built = Call({"build", "--checkpoint_dir", checkpoint, "--output_dir", engine,
                          "--max_input_len=3200", "--max_seq_len=4800"});
  ASSERT_EQ(built.code, 0) << built.err;
  EXPECT_THAT(built.err, HasSubstr("max_seq_len 4800: the model has 1024 positions"));
  const Ran run = Call({"run", "--engine_dir", engine, "--tokenizer_dir", *model_, "--input_text",
                        "What does \"tandem\" mean?", "--max_output_len", "4"});
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST_F(WorkflowTest, AnEngineIsGivenNoLongerDraftsThanItWasBuiltFor) {
  const std::string checkpoint = (*folder_ / "drafts_checkpoint").string();
  const std::string engine = (*folder_ / "drafts_engine").string();
  ASSERT_EQ(Call({"convert", *model_, "--output_dir", checkpoint}).code, 0);
  ASSERT_EQ(Call({"build", "--checkpoint_dir", checkpoint, "--output_dir", engine,
                  "--max_draft_len", "2"})
                .code,
            0);
  const auto run = [&](const std::string& option, const std::string& value) {
    return Call({"run", "--device", "cpu", "--engine_dir", engine, "--draft", *model_,
                 "--tokenizer_dir", *model_, "--input_text", "What does \"tandem\" mean?",
                 "--max_output_len", "13", option, value});
  };
  // The target drafts for itself, so every draft is accepted: each round emits one more.
  const Ran fixed = run("--draft_len", "8");
  EXPECT_THAT(fixed.err, HasSubstr("--draft_len 8: the engine was built for 2"));
  EXPECT_THAT(fixed.out, HasSubstr("8 of 8 drafted tokens"));
  EXPECT_THAT(run("--draft_target_model_config", "[8,[0],[1],False]").err,
              HasSubstr("drafts have at most 2 tokens"));
}

TEST_F(WorkflowTest, AnEngineIsServedWithTheCacheItWasBuiltForUnlessAskedOtherwise) {
  const std::string checkpoint = (*folder_ / "int8_cache_checkpoint").string();
  const std::string engine = (*folder_ / "int8_cache_engine").string();
  const Ran quantized = Call({"quantize", "--model_dir", *model_, "--kv_cache_dtype", "int8",
                              "--calib_size", "8", "--output_dir", checkpoint, "--device", "cpu"});
  ASSERT_EQ(quantized.code, 0) << quantized.err;
  const Ran built = Call({"build", "--checkpoint_dir", checkpoint, "--output_dir", engine,
                          "--kv_cache_dtype", "int8"});
  ASSERT_EQ(built.code, 0) << built.err;
  EXPECT_THAT(Call({"inspect", engine}).out,
              HasSubstr("cache scales  for keys and values in int8"));
  const auto blocks = [&](std::vector<std::string> options) {
    std::vector<std::string> call = {
        "plan", engine, "--device", "cpu", "--json", "--kv_cache_bytes", "8MiB"};
    call.insert(call.end(), options.begin(), options.end());
    const Ran plan = Call(call);
    EXPECT_EQ(plan.code, 0) << plan.err;
    return json::parse(plan.out)["cache_blocks"].get<int>();
  };
  const int in_int8 = blocks({});
  EXPECT_EQ(blocks({"--kv_cache_dtype", "int8"}), in_int8);
  EXPECT_EQ(blocks({"--kv_cache_dtype", "fp8"}), in_int8);
  EXPECT_NEAR(blocks({"--kv_cache_dtype", "auto"}), in_int8 / 2.0, 1.0);
  const Ran run =
      Call({"run", "--device", "cpu", "--engine_dir", engine, "--tokenizer_dir", *model_,
            "--input_text", "What does \"tandem\" mean?", "--max_output_len", "4"});
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST_F(WorkflowTest, DynamicScalingOfPositionsTakesEffectWhenLongContextsAreAskedFor) {
  const std::string model = (SourceDir() / "tests/data/tiny/dynamic_fp32").string();
  const Ran trained = Call({"plan", model, "--device", "cpu", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(json::parse(trained.out)["max_seq_len"], 16);
  EXPECT_THAT(trained.err, HasSubstr("--max_seq_len"));
  const Ran scaled = Call({"plan", model, "--device", "cpu", "--json", "--max_seq_len", "32"});
  EXPECT_EQ(json::parse(scaled.out)["max_seq_len"], 32);
  EXPECT_EQ(scaled.err, "");
}

TEST_F(WorkflowTest, BenchSpeculativeComparesWithADraft) {
  const Ran ran = Call({"bench", "speculative", "--device", "cpu", "--dummy", *model_,
                        "--draft_dummy", *model_, "--no_draft"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--no_draft"));
}

// A folder's name is bytes; JSON is UTF-8.
TEST_F(WorkflowTest, FoldersMayHaveNamesThatAreNotUtf8) {
  const std::string checkpoint = (*folder_ / "c\xFF").string();
  const std::string engine = (*folder_ / "e\xFF").string();
  const Ran converted = Call({"convert", *model_, "--output_dir", checkpoint});
  EXPECT_EQ(converted.code, 0) << converted.err;
  const Ran built = Call({"build", checkpoint, "--output_dir", engine, "--json"});
  EXPECT_EQ(built.code, 0) << built.err;
  EXPECT_THAT(json::parse(built.out)["output_dir"], ::testing::EndsWith("e\xEF\xBF\xBD"));
  const Ran planned = Call({"plan", engine, "--device", "cpu", "--json"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(json::parse(planned.out)["target"], ::testing::EndsWith("e\xEF\xBF\xBD"));
}

// The threads wait for each other without sleeping: 512 to a core would not come to an end.
TEST_F(WorkflowTest, ThreadsAreBoundedByTheCores) {
  const int most = 4 * AvailableCores();
  const auto plan = [](int threads) {
    return Call({"plan", *model_, "--device", "cpu", "--threads", std::to_string(threads)});
  };
  EXPECT_EQ(plan(std::min(most, 1024)).code, 0);
  const Ran refused = plan(most + 1);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--threads"));
}

TEST_F(WorkflowTest, WhatCannotBeWrittenOrReadIsNamed) {
  const std::string file = (*folder_ / "file").string();
  ASSERT_TRUE(WriteFileAtomically(file, "x").ok());
  const Ran over_file = Call({"convert", *model_, "--output_dir", file});
  EXPECT_EQ(over_file.code, 5);
  EXPECT_THAT(over_file.err, HasSubstr("is not a folder"));
  EXPECT_EQ(Call({"convert", "/absent", "--output_dir", file + ".out"}).code, 3);
  EXPECT_EQ(Call({"build", *model_, "--max_batch_size", "0"}).code, 2);
  EXPECT_EQ(Call({"plan", file}).code, 2);
  EXPECT_THAT(Call({"plan", "--device", "cuda:x"}).err, HasSubstr("--device: 'cuda:x' is none of"));
  EXPECT_THAT(Call({"plan", "--draft", *model_}).err, HasSubstr("names a draft without a target"));
}

TEST_F(WorkflowTest, DummiesNeedTheSameVocabulary) {
  const std::string config = *model_ + "/config.json";
  const Ran planned = Call({"plan", "--dummy", config, "--draft_dummy", config, "--device", "cpu"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("draft         dummy config"));
  json other = json::parse(*ReadTextFile(config));
  other["vocab_size"] = other["vocab_size"].get<int>() + 64;
  const std::string path = (*folder_ / "other.json").string();
  ASSERT_TRUE(WriteFileAtomically(path, other.dump()).ok());
  const Ran refused = Call({"plan", "--dummy", config, "--draft_dummy", path, "--device", "cpu"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--draft_dummy: its vocabulary of"));
}

}  // namespace
}  // namespace tandem::apps
