#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/session.h"
#include "apps/server/model_repository.h"
#include "base/clock.h"

namespace tandem::apps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kBroken = R"(backend: "add_sub" input [{name: "A")";

// A repository whose models need no engine: opening one is noted, and fails.
class RepositoryWithoutEnginesTest : public testing::Test {
 protected:
  RepositoryWithoutEnginesTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "tandem_repository_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~RepositoryWithoutEnginesTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& model, const std::string& config) const {
    std::filesystem::remove_all(folder_ / model);
    std::filesystem::create_directories(folder_ / model / "1");
    std::ofstream(folder_ / model / "config.pbtxt") << config;
  }
  ModelRepository Open(bool is_explicit, bool exit_on_error = true) {
    RepositoryOptions options;
    options.folder = folder_;
    options.is_explicit = is_explicit;
    options.exit_on_error = exit_on_error;
    return ModelRepository(
        options, OptionValues(rows_),
        [this](const OptionValues& values) -> Result<std::shared_ptr<ServedEngine>> {
          opened_.push_back(values);
          return Internal("an engine was opened");
        },
        engines_, models_);
  }
  // "simple READY"
  std::vector<std::string> States() const {
    std::vector<std::string> states;
    for (const serve::kserve::ModelEntry& entry : models_.Index()) {
      states.push_back(entry.name + " " + std::string(ModelStateName(entry.state)));
    }
    return states;
  }

  // A stage of that kind, by the input that stages of the kind have.
  static std::string Stage(const std::string& input, const std::string& tokenizer_dir) {
    return fmt::format(R"(backend: "python" input {{name: "{}" data_type: TYPE_STRING dims: [1]}}
                          parameters {{key: "tokenizer_dir" value {{string_value: "{}"}}}})",
                       input, tokenizer_dir);
  }
  // The tokenizer that the only engine is opened with; empty: its own.
  std::string TokenizerOfTheEngine() {
    opened_.clear();
    EXPECT_FALSE(Open(/*is_explicit=*/false).LoadAll().ok());
    if (opened_.empty()) return "no engine was opened";
    return opened_.front().Text(ModelOptionRows().RowOf<&ModelOptions::tokenizer_dir>());
  }

  const SteadyClock clock_;
  const std::vector<OptionSpec> rows_ = SessionOptionRows();
  std::vector<OptionValues> opened_;
  std::filesystem::path folder_;
  serve::ModelRegistry engines_;
  serve::kserve::Repository models_{clock_};
};

TEST_F(RepositoryWithoutEnginesTest, BuiltInModelsNeedNoEngine) {
  Write("simple", R"(backend: "add_sub" max_batch_size: 8)");
  Write("repeat_int32", R"(backend: "repeat")");
  Write("mock_llm", R"(backend: "mock_llm")");
  // A stage by its tensors, were it not for its backend.
  Write("same", R"(backend: "identity"
                   input [{name: "QUERY" data_type: TYPE_STRING dims: [1]}]
                   output [{name: "OUTPUT" data_type: TYPE_STRING dims: [1]}])");
  const Status loaded = Open(/*is_explicit=*/false).LoadAll();
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_THAT(States(),
              ElementsAre("mock_llm READY", "repeat_int32 READY", "same READY", "simple READY"));
  EXPECT_TRUE(models_.Ready());
  EXPECT_TRUE(engines_.List().empty());
  for (const serve::kserve::ModelFigures& figures : models_.Figures()) {
    EXPECT_TRUE(figures.load_time.has_value()) << figures.name;
  }
}

TEST_F(RepositoryWithoutEnginesTest, BuiltInModelsAreLoadedAndUnloadedOnRequest) {
  Write("simple", R"(backend: "add_sub")");
  ModelRepository repository = Open(/*is_explicit=*/true);
  ASSERT_TRUE(repository.LoadAll().ok());
  EXPECT_FALSE(models_.Find("simple").ok());
  ASSERT_TRUE(repository.Load("simple", {}).ok());
  EXPECT_TRUE(models_.Find("simple").ok());
  ASSERT_TRUE(repository.Unload("simple", /*dependents=*/false).ok());
  EXPECT_THAT(States(), ElementsAre("simple UNAVAILABLE"));
  // With a config of the request's own.
  const Status refused =
      repository.Load("simple", R"({"backend":"identity","input":[{"name":"A"}],)"
                                R"("output":[{"name":"B"}]})");
  EXPECT_THAT(refused.message(), HasSubstr("data_type"));
  EXPECT_TRUE(repository.Load("simple", {}).ok()) << "the file is read again";
}

TEST_F(RepositoryWithoutEnginesTest, AChainWithoutAnEngineIsRefused) {
  Write("simple", R"(backend: "add_sub")");
  Write("chain", R"(platform: "ensemble"
                    ensemble_scheduling {step [{model_name: "simple" model_version: -1}]})");
  const Status status = Open(/*is_explicit=*/false).LoadAll();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("none of the models that it works with is an engine"));
  EXPECT_THAT(States(), ElementsAre("chain UNAVAILABLE", "simple READY"));
}

TEST_F(RepositoryWithoutEnginesTest, AnEnginesTokenizerIsTheFirstThatItAndItsStagesName) {
  const std::string before = folder_ / "before", after = folder_ / "after", own = folder_ / "own";
  for (const std::string& tokenizer : {before, after, own}) {
    std::filesystem::create_directories(tokenizer);
    std::ofstream(std::filesystem::path(tokenizer) / "tokenizer.json") << "{}";
  }
  Write("tensorrt_llm", R"(backend: "tensorrtllm")");
  Write("preprocessing", Stage("QUERY", ""));
  Write("postprocessing", Stage("TOKENS_BATCH", ""));
  EXPECT_EQ(TokenizerOfTheEngine(), "");
  Write("postprocessing", Stage("TOKENS_BATCH", after));
  EXPECT_EQ(TokenizerOfTheEngine(), after);
  Write("preprocessing", Stage("QUERY", before));
  EXPECT_EQ(TokenizerOfTheEngine(), before);
  Write("tensorrt_llm", fmt::format(R"(backend: "tensorrtllm" parameters {{
                                       key: "tokenizer_dir" value {{string_value: "{}"}}}})",
                                    own));
  EXPECT_EQ(TokenizerOfTheEngine(), own);
}

TEST_F(RepositoryWithoutEnginesTest, AFailureIsTriedOnceAndNamesTheFileAndTheParameter) {
  Write("chain", R"(platform: "ensemble"
                    ensemble_scheduling {step [{model_name: "preprocessing" model_version: -1},
                                               {model_name: "tensorrt_llm" model_version: -1}]})");
  Write("preprocessing", Stage("QUERY", ""));
  Write("tensorrt_llm", R"(backend: "tensorrtllm")");
  const Status failed = Open(/*is_explicit=*/false).LoadAll();
  EXPECT_EQ(opened_.size(), 1u) << "the models that need the engine do not try it again";
  EXPECT_EQ(failed.message(), "failed to load all models: tensorrt_llm: an engine was opened");
  Write("tensorrt_llm", R"(backend: "tensorrtllm" parameters {
                             key: "gpt_model_path" value {string_value: "/nowhere"}})");
  EXPECT_EQ(Open(/*is_explicit=*/false).LoadAll().message(),
            "failed to load all models: tensorrt_llm: gpt_model_path in tensorrt_llm/config.pbtxt "
            "(engine_dir of the template) is /nowhere, which does not exist");
  Write("tensorrt_llm", kBroken);
  const Status broken = Open(/*is_explicit=*/false).LoadAll();
  EXPECT_THAT(broken.message(),
              HasSubstr("failed to load all models: tensorrt_llm/config.pbtxt:1: "));
}

TEST_F(RepositoryWithoutEnginesTest, ModelsThatNobodyLoadedYetAreListed) {
  Write("simple", R"(backend: "add_sub")");
  ASSERT_TRUE(Open(/*is_explicit=*/true).LoadAll().ok());
  EXPECT_THAT(States(), ElementsAre("simple UNAVAILABLE"));
  EXPECT_TRUE(models_.Ready());
}

TEST_F(RepositoryWithoutEnginesTest, AModelThatFailedMakesTheServerNotReady) {
  Write("simple", R"(backend: "add_sub")");
  Write("broken", kBroken);
  ASSERT_TRUE(Open(/*is_explicit=*/false, /*exit_on_error=*/false).LoadAll().ok());
  EXPECT_THAT(States(), ElementsAre("broken UNAVAILABLE", "simple READY"));
  EXPECT_FALSE(models_.Ready());
  EXPECT_TRUE(models_.Alive());
  models_.SetStrictReadiness(false);
  EXPECT_TRUE(models_.Ready());
}

TEST_F(RepositoryWithoutEnginesTest, NamesThatNobodyHasLeaveNoFailureBehind) {
  Write("simple", R"(backend: "add_sub")");
  ModelRepository repository = Open(/*is_explicit=*/true);
  ASSERT_TRUE(repository.LoadAll().ok());
  // With a configuration of the request's own.
  EXPECT_FALSE(repository.Load("made_up", R"({"backend":"nothing"})").ok());
  EXPECT_TRUE(models_.Ready());
  EXPECT_THAT(States(), ElementsAre("simple UNAVAILABLE"));
  // A step that is misspelt, and then mended.
  const char* kChain = R"(platform: "ensemble"
                          ensemble_scheduling {{step [{{model_name: "{}" model_version: -1}}]}})";
  Write("chain", fmt::format(fmt::runtime(kChain), "simpel"));
  EXPECT_FALSE(repository.Load("chain", {}).ok());
  EXPECT_FALSE(models_.Ready());
  Write("chain", R"(backend: "identity" input [{name: "A" data_type: TYPE_INT32 dims: [1]}]
                    output [{name: "B" data_type: TYPE_INT32 dims: [1]}])");
  const Status mended = repository.Load("chain", {});
  EXPECT_TRUE(mended.ok()) << mended.message();
  EXPECT_TRUE(models_.Ready());
  EXPECT_THAT(States(), ElementsAre("chain READY", "simple UNAVAILABLE"));
}

TEST_F(RepositoryWithoutEnginesTest, WhatIsUnloadedOrNotAskedForDoesNotCountAsFailed) {
  Write("simple", R"(backend: "add_sub")");
  Write("broken", kBroken);
  Write("chain", R"(platform: "ensemble"
                    ensemble_scheduling {step [{model_name: "simple" model_version: -1}]})");
  ModelRepository repository = Open(/*is_explicit=*/true);
  ASSERT_TRUE(repository.LoadAll().ok());
  EXPECT_TRUE(models_.Ready()) << "nobody wants the broken one";
  ASSERT_TRUE(repository.Load("simple", {}).ok());
  ASSERT_TRUE(repository.Unload("simple", /*dependents=*/false).ok());
  EXPECT_TRUE(models_.Ready());
  EXPECT_FALSE(repository.Load("chain", {}).ok());
  EXPECT_FALSE(models_.Ready());
  ASSERT_TRUE(repository.Unload("chain", /*dependents=*/false).ok());
  EXPECT_TRUE(models_.Ready()) << "it is not meant to be loaded any more";
}

}  // namespace
}  // namespace tandem::apps
