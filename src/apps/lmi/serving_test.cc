// A server as an LMI container starts it: when, where it listens, which model with which options.
#include "apps/lmi/serving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/models/load_quantization.h"
#include "apps/models/session.h"
#include "apps/server/serve_options.h"
#include "base/testing/temporary_folder.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kHf = R"({"architectures": ["LlamaForCausalLM"]})";

class LmiServingTest : public testing::Test {
 protected:
  void Write(const fs::path& path, const std::string& text = "") {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void WriteModel(const fs::path& at) {
    Write(at / "config.json", kHf);
    Write(at / "model.safetensors");
  }
  std::string Path(const std::string& name) const { return (root_ / name).string(); }
  void Give(const std::string& name, const std::string& value) {
    const Status set = values_.Set(name, {value}, "--" + name);
    EXPECT_TRUE(set.ok()) << set.message();
  }
  Result<std::optional<LmiServing>> Take(Environment environment) {
    environment.emplace("SERVING_MODEL_STORE", (root_ / "store").string());
    environment.emplace("MODEL_SERVER_HOME", (root_ / "home").string());
    return LmiServing::Take(environment, values_);
  }
  LmiServing Taken(const Environment& environment) {
    auto taken = Take(environment);
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    EXPECT_TRUE(taken->has_value());
    return **std::move(taken);
  }
  std::string Text(std::string_view option) const { return values_.Given(*values_.Find(option)); }
  // Fetches name what they were asked for, below the test's folder.
  LmiAccess Access() {
    return {.fetch = [this](const std::string& source, const std::string& revision,
                            bool) -> Result<fs::path> {
      fetched_.push_back(revision.empty() ? source : source + "@" + revision);
      return root_ / "fetched";
    }};
  }
  OptionValues ModelValues(const LmiServing& serving, size_t model = 0) {
    auto read = serving.ModelValues(model, values_, Access());
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read.ok() ? read->values : values_;
  }
  static std::string Target(const OptionValues& values) {
    return ModelOptionRows().Read(values).target.string();
  }

  const TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
  const std::vector<OptionSpec> rows_ = SessionOptionRows(ServeOptionRows());
  OptionValues values_{rows_};
  std::vector<std::string> fetched_;
};

TEST_F(LmiServingTest, AFolderWithPropertiesIsOneModelOfItsName) {
  WriteModel("llama");
  Write("llama/serving.properties", "option.max_rolling_batch_size=16 # default is 32\n");
  Give("model", Path("llama"));
  const LmiServing serving = Taken({});
  ASSERT_EQ(serving.num_models(), 1u);
  EXPECT_EQ(serving.name(0), "llama");
  const OptionValues values = ModelValues(serving);
  EXPECT_EQ(Target(values), Path("llama"));
  EXPECT_EQ(EngineOptionsFrom(values).max_batch_size, 16);
  EXPECT_EQ(EngineOptionsFrom(values).max_input_len, 1024);
}

TEST_F(LmiServingTest, OtherStartsAreLeftAlone) {
  WriteModel("llama");
  WriteModel("store/m");
  const auto is_lmi = [&] { return Take({{"OPTION_MODEL_ID", "x"}}).value().has_value(); };
  EXPECT_TRUE(is_lmi()) << "without MODEL the environment decides";
  Give("model", Path("llama"));
  EXPECT_FALSE(is_lmi()) << "a plain model is served as ever";
  Give("as_lmi", "true");
  EXPECT_TRUE(is_lmi());
}

TEST_F(LmiServingTest, AModelRepositoryIsNoStore) {
  Give("model_repo", Path("repo"));
  EXPECT_FALSE(Take({{"HF_MODEL_ID", "x"}}).value().has_value());
  Give("as_lmi", "true");
  EXPECT_THAT(Take({}).status().message(), HasSubstr("contradicts --model_repo"));
}

TEST_F(LmiServingTest, ListensWhereTheContainerDoes) {
  WriteModel("store/m");
  Taken({});
  EXPECT_EQ(Text("host"), "0.0.0.0");
  EXPECT_EQ(Text("port"), "8080");
  EXPECT_EQ(Text("insecure"), "true");
}

TEST_F(LmiServingTest, AFolderOfTheCommandLineIsServedToThisMachineOnly) {
  WriteModel("llama");
  Write("llama/serving.properties", "option.max_rolling_batch_size=16\n");
  Give("model", Path("llama"));
  Taken({});
  EXPECT_FALSE(values_.IsSet(*values_.Find("host")));
  EXPECT_FALSE(values_.IsSet(*values_.Find("insecure")));
  EXPECT_EQ(Text("port"), "8080");
}

TEST_F(LmiServingTest, TheAddressMayBeGiven) {
  WriteModel("store/m");
  Taken({{"SERVING_INFERENCE_ADDRESS", "http://127.0.0.1:9000"}});
  EXPECT_EQ(Text("host"), "127.0.0.1");
  EXPECT_EQ(Text("port"), "9000");
  EXPECT_FALSE(values_.IsSet(*values_.Find("insecure"))) << "nobody else reaches it";
}

TEST_F(LmiServingTest, ThePortMayBeGivenAlone) {
  WriteModel("store/m");
  Taken({{"SAGEMAKER_BIND_TO_PORT", "8085"}});
  EXPECT_EQ(Text("port"), "8085");
}

TEST_F(LmiServingTest, ServingPortGoesOverSageMakers) {
  WriteModel("store/m");
  Taken({{"SAGEMAKER_BIND_TO_PORT", "8085"}, {"SERVING_PORT", "8086"}});
  EXPECT_EQ(Text("port"), "8086");
}

TEST_F(LmiServingTest, TheCommandLineGoesOverTheAddress) {
  WriteModel("store/m");
  Give("port", "1234");
  Give("host", "::1");
  Give("api_key", "k");
  Taken({});
  EXPECT_EQ(Text("port"), "1234");
  EXPECT_EQ(Text("host"), "::1");
  EXPECT_FALSE(values_.IsSet(*values_.Find("insecure")));
}

TEST_F(LmiServingTest, HttpsNeedsFiles) {
  WriteModel("store/m");
  EXPECT_THAT(Take({{"SERVING_INFERENCE_ADDRESS", "https://[::]:8443"}}).status().message(),
              HasSubstr("https needs certificate_file and private_key_file"));
  Take({{"SERVING_INFERENCE_ADDRESS", "https://[::]:8443"},
        {"SERVING_CERTIFICATE_FILE", "c.pem"},
        {"SERVING_PRIVATE_KEY_FILE", "k.pem"}})
      .value();
  EXPECT_EQ(Text("tls_cert_file"), "c.pem");
  for (const char* wrong : {"unix:/tmp/x", "http://", "127.0.0.1:8080", "http://:8080"}) {
    EXPECT_EQ(Take({{"SERVING_INFERENCE_ADDRESS", wrong}}).status().code(), Code::kInvalidArgument)
        << wrong;
  }
}

TEST_F(LmiServingTest, ReadsConfigPropertiesOfTheServer) {
  WriteModel("store/m");
  Write("home/conf/config.properties", "inference_address=http://127.0.0.1:9\njob_queue_size=3");
  const LmiServing serving = Taken({});
  EXPECT_EQ(Text("port"), "9");
  EXPECT_EQ(serving.ModelValues(0, values_, Access())->http->job_queue_size, 3);
  EXPECT_EQ(EngineOptionsFrom(ModelValues(serving)).max_queue_size, 3);
}

TEST_F(LmiServingTest, SeveralModelsHaveOptionsOfTheirOwn) {
  WriteModel("store/a");
  WriteModel("store/b");
  Write("store/b/serving.properties", "option.max_rolling_batch_size=5");
  const LmiServing serving = Taken({{"OPTION_MAX_ROLLING_BATCH_SIZE", "7"}});
  ASSERT_EQ(serving.num_models(), 2u);
  EXPECT_EQ(serving.name(1), "b");
  EXPECT_EQ(EngineOptionsFrom(ModelValues(serving, 0)).max_batch_size, 7);
  EXPECT_EQ(EngineOptionsFrom(ModelValues(serving, 1)).max_batch_size, 5);
  EXPECT_EQ(Target(ModelValues(serving, 1)), Path("store/b"));
}

TEST_F(LmiServingTest, ModelIdIsAFolderThereOrAnywhere) {
  WriteModel("store/m/inside");
  WriteModel("elsewhere");
  Write("store/m/serving.properties", "option.model_id=inside");
  EXPECT_EQ(Target(ModelValues(Taken({}))), Path("store/m/inside"));
  Write("store/m/serving.properties", "option.model_id=" + Path("elsewhere"));
  EXPECT_EQ(Target(ModelValues(Taken({}))), Path("elsewhere"));
  Write("store/m/serving.properties", "option.model_id=/nowhere");
  EXPECT_THAT(Taken({}).ModelValues(0, values_, Access()).status().message(),
              HasSubstr("option.model_id: /nowhere does not exist"));
}

TEST_F(LmiServingTest, OtherIdsAreFetched) {
  WriteModel("fetched");
  Write("store/m/serving.properties",
        "option.model_id=org/model\noption.revision=v2\noption.tokenizer=org/tokens\n"
        "option.draft_model_id=s3://bucket/draft");
  const OptionValues values = ModelValues(Taken({}));
  EXPECT_EQ(Target(values), Path("fetched"));
  EXPECT_EQ(ModelOptionRows().Read(values).tokenizer_dir, Path("fetched"));
  EXPECT_EQ(ModelOptionRows().Read(values).draft, Path("fetched"));
  EXPECT_THAT(fetched_, ElementsAre("org/model@v2", "org/tokens", "s3://bucket/draft"));
}

TEST_F(LmiServingTest, AHubsModelNeedsNoFolder) {
  WriteModel("fetched");
  const LmiServing serving = Taken({{"HF_MODEL_ID", "org/model"}, {"HF_REVISION", "v3"}});
  EXPECT_EQ(serving.name(0), "org_model");
  EXPECT_EQ(Target(ModelValues(serving)), Path("fetched"));
  EXPECT_THAT(fetched_, ElementsAre("org/model@v3"));
}

TEST_F(LmiServingTest, AnArchiveIsFetchedAndItsOneFolderTaken) {
  WriteModel("fetched/model");
  Write("fetched/model/serving.properties", "option.max_input_len=77");
  Write("store/m.tar.gz");
  const LmiServing serving = Taken({});
  EXPECT_EQ(serving.name(0), "m");
  const OptionValues values = ModelValues(serving);
  EXPECT_EQ(Target(values), Path("fetched/model"));
  EXPECT_EQ(EngineOptionsFrom(values).max_input_len, 77);
}

TEST_F(LmiServingTest, AModelThatARequestAddsHasItsOwnProperties) {
  WriteModel("store/m");
  WriteModel("more/inside");
  Write("more/inside/serving.properties", "option.max_input_len=66");
  WriteModel("fetched/model");
  Write("fetched/model/serving.properties", "option.max_input_len=77");
  const LmiServing serving = Taken({{"OPTION_MAX_OUTPUT_LEN", "100"}});
  const auto added = [&](const std::string& url) {
    auto read = serving.AddedModelValues(url, values_, Access());
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read.ok() ? read->values : values_;
  };
  const OptionValues folder = added("file://" + Path("more/inside"));
  EXPECT_EQ(Target(folder), Path("more/inside"));
  EXPECT_EQ(EngineOptionsFrom(folder).max_input_len, 66);
  const OptionValues fetched = added("s3://bucket/model.tar.gz");
  EXPECT_EQ(Target(fetched), Path("fetched/model"));
  EXPECT_EQ(EngineOptionsFrom(fetched).max_input_len, 77);
  EXPECT_EQ(Target(added("m")), Path("store/m"));
  EXPECT_THAT(fetched_, ElementsAre("s3://bucket/model.tar.gz"));
}

TEST_F(LmiServingTest, MayBeginWithoutModelsWhereRequestsAddThem) {
  Give("as_lmi", "true");
  Give("multi_model", "true");
  EXPECT_EQ(Taken({}).num_models(), 0u);
}

TEST_F(LmiServingTest, QuantizesAsAsked) {
  WriteModel("store/m");
  Write("store/m/serving.properties",
        "option.quantize=smoothquant\noption.smoothquant_alpha=0.6\n"
        "option.smoothquant_per_token=true # slower\n");
  const OptionValues values = ModelValues(Taken({}));
  EXPECT_EQ(Target(values), Path("store/m"));
  EXPECT_EQ(LoadQuantizationRows().Read(values).Asked(),
            (CalibratedQuantization{.scheme = CalibratedQuantization::Scheme::kSmoothQuant,
                                    .alpha = 0.6,
                                    .per_token = true}));
}

TEST_F(LmiServingTest, HandlersInPythonAreRefusedUnlessToldToBeNone) {
  WriteModel("store/m");
  Write("store/m/model.py", "def handle(inputs): ...");
  EXPECT_THAT(Take({}).status().message(),
              AllOf(HasSubstr("model.py: is a handler in Python"), HasSubstr("option.entryPoint")));
  Write("store/m/serving.properties", "option.entryPoint=djl_python.tensorrt_llm");
  EXPECT_EQ(Taken({}).num_models(), 1u);
}

TEST_F(LmiServingTest, EngineAndDevicesOfTheListCount) {
  WriteModel("store/m");
  const OptionValues values =
      ModelValues(Taken({{"SERVING_LOAD_MODELS", "x::MPI:-1=" + Path("store/m")}}));
  EXPECT_EQ(values.Given(*values.Find("device")), "cpu");
  EXPECT_THAT(Take({{"SERVING_LOAD_MODELS", "x::PyTorch=" + Path("store/m")}}).status().message(),
              HasSubstr("load_models: 'PyTorch' is for other kinds of models"));
}

TEST_F(LmiServingTest, TheRoutesHaveTheServersSettings) {
  WriteModel("store/m");
  Give("lmi_generation", "0.34");
  const serve::lmi::Settings http = Taken({{"SAGEMAKER_MULTI_MODEL", "true"},
                                           {"SAGEMAKER_HEALTH_CHECK_OVERRIDE", "true"},
                                           {"SERVING_MAX_REQUEST_SIZE", "1000"}})
                                        .http();
  EXPECT_TRUE(http.multi_model);
  EXPECT_TRUE(http.needs_all_ready);
  EXPECT_EQ(http.max_request_size, 1000u);
  EXPECT_EQ(http.generation, serve::lmi::Generation::k034);
}

TEST_F(LmiServingTest, EachModelHasItsSettingsWhereverItComesFrom) {
  const std::string properties =
      "option.output_formatter=sse\noption.tgi_compat=true\noption.predict_timeout=9\n"
      "job_queue_size=3";
  WriteModel("store/a");
  WriteModel("store/b");
  Write("store/b/serving.properties", properties);
  Write("store/c.tar.gz");
  WriteModel("fetched/model");
  Write("fetched/model/serving.properties", properties);
  const LmiServing serving = Taken({});
  const auto http = [&](size_t model) {
    return *serving.ModelValues(model, values_, Access())->http;
  };
  EXPECT_EQ(http(0).output_formatter, serve::lmi::OutputFormatter::kByStream);
  EXPECT_EQ(http(0).job_queue_size, 1000);
  for (const serve::lmi::ModelSettings& own :
       {http(1), http(2), *serving.AddedModelValues("s3://b/m.tar.gz", values_, Access())->http}) {
    EXPECT_EQ(own.output_formatter, serve::lmi::OutputFormatter::kSse);
    EXPECT_TRUE(own.tgi_compat);
    EXPECT_EQ(own.predict_timeout, std::chrono::seconds(9));
    EXPECT_EQ(own.job_queue_size, 3);
  }
}

TEST_F(LmiServingTest, ShowsWhatWasUnderstood) {
  WriteModel("store/m");
  Write("store/m/serving.properties", "option.max_input_len=256 # default is 1024\noption.x=1");
  const std::string shown = Taken({{"OPTION_DTYPE", "fp16"}}).Show(values_).value();
  EXPECT_THAT(shown, AllOf(HasSubstr("# The model m in " + Path("store/m")),
                           HasSubstr("serving.properties: line 1: option.max_input_len: "
                                     "--max_input_len\noption.max_input_len=256\n"),
                           HasSubstr("# OPTION_DTYPE: --dtype\noption.dtype=fp16\n"),
                           HasSubstr("option.x: not known here, no effect"),
                           HasSubstr("# => --max_seq_len 768\n")));
}

}  // namespace
}  // namespace tandem::apps
