// Which value counts where several places have one, and what the keys of a model make together.
#include "apps/lmi/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "apps/models/session.h"
#include "apps/server/serve_options.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// The published lines, with a comment after each value.
constexpr const char* kSeed = R"(option.model_id=/models/llama
option.tensor_parallel_degree=1
option.max_rolling_batch_size=16 # default is 32
option.max_input_len=256 # default is 1024
option.max_output_len=256 # default is 512
)";

LmiFile File(const std::string& text) {
  return {.path = "serving.properties", .properties = ParseProperties(text).value()};
}

LmiGivenKeys Model(const Environment& environment, const std::string& text = "") {
  return LmiModelKeys(environment, LmiServerKeys(environment, {}), File(text));
}

// The keys with their values alone.
std::map<std::string, std::string> Values(const LmiGivenKeys& given) {
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : given) values[key] = value.value;
  return values;
}

LmiConfig Config(const LmiGivenKeys& given, const LmiContext& context = {}) {
  auto config = LmiConfig::ForModel(given, context);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *std::move(config) : LmiConfig();
}

std::string OptionOf(const LmiConfig& config, const std::string& name) {
  const auto found = config.settings().options.find(name);
  return found == config.settings().options.end() ? "" : found->second;
}

TEST(LmiPrecedence, TheFileGoesOverOptionVariables) {
  const Environment environment = {{"OPTION_MAX_INPUT_LEN", "100"}, {"OPTION_DTYPE", "bf16"}};
  EXPECT_THAT(Values(Model(environment, "option.max_input_len=200")),
              UnorderedElementsAre(std::pair("option.max_input_len", "200"),
                                   std::pair("option.dtype", "bf16")));
}

TEST(LmiPrecedence, SpellsOptionVariables) {
  const Environment environment = {
      {"OPTION_ENTRYPOINT", "djl_python.x"}, {"OPTION_someKey", "1"}, {"OPTION_ENGINE", "MPI"},
      {"OPTION_ROLLING_BATCH", ""},          {"OPTION_", "x"},        {"PATH", "/bin"}};
  EXPECT_THAT(Values(Model(environment)),
              UnorderedElementsAre(std::pair("option.entryPoint", "djl_python.x"),
                                   std::pair("option.someKey", "1"), std::pair("engine", "MPI")))
      << "empty values are as if they were not there";
}

TEST(LmiPrecedence, DegreesCountOnlyWithoutTheOption) {
  EXPECT_EQ(Values(Model({{"TENSOR_PARALLEL_DEGREE", "2"}}))["option.tensor_parallel_degree"], "2");
  EXPECT_EQ(
      Values(Model({{"TENSOR_PARALLEL_DEGREE", "2"},
                    {"OPTION_TENSOR_PARALLEL_DEGREE", "4"}}))["option.tensor_parallel_degree"],
      "4");
  EXPECT_EQ(Values(Model({{"SM_NUM_GPUS", "8"}}))["option.tensor_parallel_degree"], "8");
  EXPECT_EQ(Values(Model({{"PIPELINE_PARALLEL_DEGREE", "3"}},
                         "option.pipeline_parallel_degree=1"))["option.pipeline_parallel_degree"],
            "1");
}

TEST(LmiPrecedence, TakesTheNamesOfTextGenerationInference) {
  EXPECT_THAT(
      Values(Model({{"HF_MODEL_QUANTIZE", "awq"},
                    {"MAX_CONCURRENT_REQUESTS", "9"},
                    {"MAX_BATCH_PREFILL_TOKENS", "512"},
                    {"MAX_BATCH_SIZE", "7"},
                    {"ENABLE_CUDA_GRAPHS", "true"},
                    {"CUDA_MEMORY_FRACTION", "0.6"},
                    {"HF_MODEL_TRUST_REMOTE_CODE", "true"}})),
      UnorderedElementsAre(std::pair("option.quantize", "awq"), std::pair("job_queue_size", "9"),
                           std::pair("option.max_rolling_batch_prefill_tokens", "512"),
                           std::pair("option.max_rolling_batch_size", "7"),
                           std::pair("option.enforce_eager", "false"),
                           std::pair("option.kv_cache_free_gpu_mem_fraction", "0.6"),
                           std::pair("option.trust_remote_code", "true")));
  EXPECT_EQ(
      Values(Model({{"MAX_BATCH_SIZE", "7"},
                    {"OPTION_MAX_ROLLING_BATCH_SIZE", "5"}}))["option.max_rolling_batch_size"],
      "5");
  EXPECT_EQ(Model({{"MAX_BATCH_SIZE", "7"}}).at("option.max_rolling_batch_size").where,
            "MAX_BATCH_SIZE")
      << "errors name what was written";
}

TEST(LmiPrecedence, SageMakersTimeoutsGoOverTheFile) {
  const Environment environment = {{"SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "33"},
                                   {"SAGEMAKER_NUM_MODEL_WORKERS", "2"},
                                   {"SAGEMAKER_STARTUP_TIMEOUT", "44"}};
  EXPECT_THAT(Values(Model(environment, "option.predict_timeout=11\nminWorkers=1")),
              UnorderedElementsAre(std::pair("option.predict_timeout", "33"),
                                   std::pair("option.model_loading_timeout", "44"),
                                   std::pair("minWorkers", "2"), std::pair("maxWorkers", "2")));
}

TEST(LmiPrecedence, ServingVariablesGoOverConfigProperties) {
  const LmiFile file = File("job_queue_size=1\nmax_request_size=2\nallow_multi_status=true");
  const Environment environment = {{"SERVING_JOB_QUEUE_SIZE", "5"},
                                   {"SERVING_MIN_WORKERS", "1"},
                                   {"SAGEMAKER_MAX_PAYLOAD_IN_MB", "3"}};
  EXPECT_THAT(Values(LmiServerKeys(environment, file)),
              UnorderedElementsAre(std::pair("job_queue_size", "5"), std::pair("minWorkers", "1"),
                                   std::pair("allow_multi_status", "true"),
                                   std::pair("max_request_size", "3145728")));
  EXPECT_EQ(Values(LmiServerKeys(
                {{"SAGEMAKER_MAX_PAYLOAD_IN_MB", "3"}, {"SAGEMAKER_MAX_REQUEST_SIZE", "100"}},
                {}))["max_request_size"],
            "100");
}

TEST(LmiPrecedence, ModelsFallBackToTheServersValues) {
  const Environment environment = {{"SERVING_JOB_QUEUE_SIZE", "5"}, {"SERVING_BATCH_SIZE", "4"}};
  EXPECT_THAT(Values(Model(environment, "job_queue_size=6")),
              UnorderedElementsAre(std::pair("job_queue_size", "6"), std::pair("batch_size", "4")));
}

TEST(LmiConfig, TakesTheSeedsFileWithItsComments) {
  const LmiConfig config = Config(Model({}, kSeed));
  EXPECT_EQ(OptionOf(config, "max_batch_size"), "16");
  EXPECT_EQ(OptionOf(config, "max_input_len"), "256");
  EXPECT_EQ(OptionOf(config, "max_seq_len"), "512");
  EXPECT_EQ(config.settings().sources.model_id, "/models/llama");
  ASSERT_EQ(config.notes().size(), 3u);
  EXPECT_THAT(config.notes(), Contains(HasSubstr("serving.properties: line 3: "
                                                 "option.max_rolling_batch_size: '16 # default is "
                                                 "32' is read as '16'")));
}

TEST(LmiConfig, HasTheDefaultsOfItsRelease) {
  const LmiConfig first = Config({}, {.generation = 26, .on_gpu = true});
  EXPECT_EQ(OptionOf(first, "max_batch_size"), "32");
  EXPECT_EQ(OptionOf(first, "max_input_len"), "1024");
  EXPECT_EQ(OptionOf(first, "max_seq_len"), "1536");
  EXPECT_EQ(OptionOf(first, "tokens_per_block"), "64");
  EXPECT_EQ(OptionOf(first, "kv_cache_free_gpu_mem_fraction"), "0.95");
  EXPECT_EQ(OptionOf(first, "max_queue_size"), "1000");
  EXPECT_EQ(OptionOf(first, "max_queue_wait"), "240");
  EXPECT_EQ(first.settings().http.generation, serve::lmi::Generation::k026);
  EXPECT_EQ(OptionOf(first, "calib_size"), "") << "without option.quantize";
  EXPECT_THAT(first.notes(), IsEmpty());
  const LmiConfig later = Config({}, {.generation = 30});
  EXPECT_EQ(OptionOf(later, "max_batch_size"), "256");
  EXPECT_EQ(OptionOf(later, "tokens_per_block"), "128");
  EXPECT_EQ(later.settings().http.generation, serve::lmi::Generation::k027);
  const auto calib_size = [](int generation) {
    return OptionOf(Config(Model({}, "option.quantize=awq"), {.generation = generation}),
                    "calib_size");
  };
  EXPECT_EQ(calib_size(26), "32");
  EXPECT_EQ(calib_size(30), "512");
  EXPECT_EQ(OptionOf(later, "kv_cache_free_gpu_mem_fraction"), "") << "on a CPU our own";
  EXPECT_EQ(Config({}, {.generation = 36}).settings().http.generation,
            serve::lmi::Generation::k034);
}

TEST(LmiConfig, TheTokenBudgetRaisesOtherDefaultsFrom027On) {
  const LmiGivenKeys given = Model({}, "option.max_num_tokens=16384");
  const LmiConfig later = Config(given, {.generation = 28});
  EXPECT_EQ(OptionOf(later, "max_num_tokens"), "16384");
  EXPECT_EQ(OptionOf(later, "max_input_len"), "4096");
  EXPECT_EQ(OptionOf(later, "max_seq_len"), "8192");
  EXPECT_EQ(OptionOf(later, "max_batch_size"), "256");
  EXPECT_EQ(OptionOf(Config(Model({}, "option.max_num_tokens=100\noption.max_input_len=50"),
                            {.generation = 28}),
                     "max_input_len"),
            "100");
  EXPECT_EQ(OptionOf(Config(given), "max_input_len"), "1024") << "0.26 did not have it";
}

TEST(LmiConfig, AWholeLengthReplacesTheDefaultsOfItsParts) {
  const LmiConfig config = Config(Model({}, "option.max_seq_len=8192"));
  EXPECT_EQ(OptionOf(config, "max_seq_len"), "8192");
  EXPECT_EQ(OptionOf(config, "max_input_len"), "");
}

TEST(LmiConfig, SeveralModelsShareTheMemory) {
  const LmiContext first = {.on_gpu = true, .num_models = 2, .model = 0};
  const LmiContext second = {.on_gpu = true, .num_models = 2, .model = 1};
  EXPECT_EQ(OptionOf(Config({}, first), "kv_cache_free_gpu_mem_fraction"), "0.475");
  EXPECT_EQ(OptionOf(Config({}, second), "kv_cache_free_gpu_mem_fraction"), "0.95");
  EXPECT_EQ(OptionOf(Config(Model({}, "option.kv_cache_free_gpu_mem_fraction=0.3"), first),
                     "kv_cache_free_gpu_mem_fraction"),
            "0.3");
}

TEST(LmiConfig, UnknownKeysAreToldOnceAndTaken) {
  const LmiConfig config =
      Config(Model({}, "option.max_inputlen=3\noption.gpu_memory=x\noption.None=None"));
  ASSERT_EQ(config.notes().size(), 1u);
  EXPECT_THAT(config.notes().front(),
              testing::AllOf(HasSubstr("option.max_inputlen (did you mean option.max_input_len?)"),
                             HasSubstr("option.gpu_memory")));
}

TEST(LmiConfig, KeysOfTheServerInAModelsFileAreTold) {
  const LmiConfig config = Config(Model({}, "inference_address=http://0.0.0.0:1"));
  EXPECT_THAT(config.notes(), Contains(HasSubstr("is a key of the server")));
}

TEST(LmiConfig, SaysWhichOfTwoKeysForOneOptionCounts) {
  const LmiConfig config =
      Config(Model({}, "option.pipeline_parallel_size=4\noption.pipeline_parallel_degree=2"));
  EXPECT_EQ(OptionOf(config, "pipeline_parallel_size"), "4");
  EXPECT_THAT(config.notes(), Contains(HasSubstr("option.pipeline_parallel_size sets the same")));
  EXPECT_THAT(Config(Model({},
                           "option.pipeline_parallel_size=2\n"
                           "option.pipeline_parallel_degree=2"))
                  .notes(),
              IsEmpty());
}

TEST(LmiConfig, PartsOfAQuantizationThatIsNotAskedForAreTold) {
  EXPECT_THAT(Config(Model({}, "option.smoothquant_alpha=0.5")).notes(),
              Contains(HasSubstr("no effect without option.quantize")));
  EXPECT_EQ(OptionOf(Config(Model({}, "option.smoothquant_alpha=0.5")), "smoothquant_alpha"), "");
  EXPECT_THAT(
      Config(Model({}, "option.quantize=smoothquant\noption.smoothquant_alpha=0.5")).notes(),
      IsEmpty());
}

TEST(LmiConfig, PythonsNoneIsNoValue) {
  const LmiConfig config =
      Config(Model({}, "option.rotary_scaling_type=None\noption.max_input_len=None"));
  EXPECT_EQ(OptionOf(config, "rotary_scaling_type"), "");
  EXPECT_EQ(OptionOf(config, "max_input_len"), "1024");
}

class LmiOptionsTest : public testing::Test {
 protected:
  const std::vector<OptionSpec> rows_ = SessionOptionRows(ServeOptionRows());
  OptionValues values_{rows_};
};

TEST_F(LmiOptionsTest, TheCommandLineGoesOverAllFiles) {
  ASSERT_TRUE(values_.Set("max_batch_size", {"3"}, "--max_batch_size").ok());
  ASSERT_TRUE(Config(Model({}, kSeed)).SetOptions(values_).ok());
  EXPECT_EQ(EngineOptionsFrom(values_).max_batch_size, 3);
  EXPECT_EQ(EngineOptionsFrom(values_).max_input_len, 256);
}

TEST_F(LmiOptionsTest, AValueOutOfRangeNamesFileLineKeyAndWhatIsAllowed) {
  const Status status = Config(Model({}, "\noption.tokens_per_block=48")).SetOptions(values_);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(),
              testing::AllOf(HasSubstr("serving.properties: line 2: option.tokens_per_block: '48'"),
                             HasSubstr("8, 16, 32, 64, 128")));
  EXPECT_THAT(Config(Model({{"OPTION_TOKENS_PER_BLOCK", "48"}})).SetOptions(values_).message(),
              HasSubstr("OPTION_TOKENS_PER_BLOCK: '48'"));
  EXPECT_THAT(Config(Model({}, "option.quantize=awq\noption.awq_block_size=100"))
                  .SetOptions(values_)
                  .message(),
              testing::AllOf(HasSubstr("serving.properties: line 2: option.awq_block_size: '100'"),
                             HasSubstr("64, 128")));
}

}  // namespace
}  // namespace tandem::apps
