// A model repository over the embedded pair: real engines, through the inference protocol's calls.
#include "apps/server/model_repository.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include "apps/cli/command.h"
#include "serve/metrics.h"
#include "serve/process_usage.h"

namespace tandem::apps {
namespace {

namespace kserve = serve::kserve;
namespace fs = std::filesystem;

class ModelRepositoryTest : public testing::Test {
 protected:
  ModelRepositoryTest()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()),
        models_(clock_) {
    fs::remove_all(folder_);
    const fs::path pair = *EmbeddedPairFolder();
    Write("preprocessing",
          R"(backend: "python" input [{name: "QUERY" data_type: TYPE_STRING dims: [1]}])");
    Write(
        "postprocessing",
        R"(backend: "python" input [{name: "TOKENS_BATCH" data_type: TYPE_INT32 dims: [-1, -1]}])");
    Write("tensorrt_llm", Engine(pair / "target"));
    Write("tensorrt_llm_draft", Engine(pair / "draft"));
    Write("ensemble", R"(platform: "ensemble" ensemble_scheduling { step [
          {model_name: "preprocessing" model_version: -1}, {model_name: "tensorrt_llm" model_version: -1},
          {model_name: "postprocessing" model_version: -1}] })");
    Write("tensorrt_llm_bls",
          R"(backend: "python" input [{name: "text_input" data_type: TYPE_STRING dims: [1]}]
          parameters {key: "tensorrt_llm_model_name" value {string_value: "tensorrt_llm"}}
          parameters {key: "tensorrt_llm_draft_model_name" value {string_value: "tensorrt_llm_draft"}})");
  }
  ~ModelRepositoryTest() override { fs::remove_all(folder_); }

  static std::string Engine(const fs::path& model) {
    return fmt::format(
        R"(backend: "tensorrtllm" model_transaction_policy {{ decoupled: false }}
        parameters {{key: "gpt_model_path" value {{string_value: "{}"}}}}
        parameters {{key: "gpt_model_type" value {{string_value: "inflight_fused_batching"}}}}
        parameters {{key: "max_tokens_in_paged_kv_cache" value {{string_value: "4096"}}}})",
        model.string());
  }
  void Write(const std::string& name, const std::string& config) {
    fs::create_directories(folder_ / name / "1");
    std::ofstream(folder_ / name / "config.pbtxt")
        << fmt::format("name: \"{}\" max_batch_size: 4 {}\n", name, config);
  }

  void Open(bool is_explicit, const std::vector<std::string>& load = {}) {
    RepositoryOptions options;
    options.folder = folder_;
    options.is_explicit = is_explicit;
    options.load_models = load;
    OptionValues values(rows_);
    for (const auto& [name, value] :
         {std::pair("threads", "2"), std::pair("no_draft", "false"),
          std::pair("max_batch_size", "8"), std::pair("data_parallel_size", replicas_)}) {
      ASSERT_TRUE(values.Set(name, {value}, name).ok());
    }
    repository_ = std::make_unique<ModelRepository>(
        options, values,
        [this](const OptionValues& asked) -> Result<std::shared_ptr<ServedEngine>> {
          Result<std::shared_ptr<ServedEngine>> engine =
              OpenServedEngine(asked, console_, {}, {}, metrics_, {}, reaper_, &shared_);
          if (engine.ok()) opened_.push_back(*engine);
          return engine;
        },
        engines_, models_);
    if (is_explicit) models_.SetLoader(repository_.get());
  }

  // The whole text that a text model answers; an error's message if there is one.
  std::string Ask(const std::string& model, int max_tokens = 24, std::optional<int> end_id = {}) {
    const std::vector<std::string> prompt = {"What does \"tandem\" mean?"};
    const std::vector<int32_t> tokens = {max_tokens};
    const std::vector<int32_t> end = {end_id.value_or(0)};
    std::vector<kserve::Tensor> inputs = {kserve::StringTensor("text_input", {1, 1}, prompt),
                                          kserve::Int32Tensor("max_tokens", {1, 1}, tokens)};
    if (end_id) inputs.push_back(kserve::Int32Tensor("end_id", {1, 1}, end));
    return Infer(model, std::move(inputs));
  }
  // The text of the first output, likewise.
  std::string Infer(const std::string& model, std::vector<kserve::Tensor> inputs) {
    const Result<kserve::InferModelPtr> found = models_.Find(model);
    if (!found.ok()) return found.status().message();
    kserve::InferRequest request;
    request.model_name = model;
    request.one_response = true;
    request.inputs = std::move(inputs);
    const auto call = models_.Infer(*found, std::move(request), [] {});
    std::string text;
    while (true) {
      kserve::InferResponse response;
      Status error;
      switch (call->Next(response, error)) {
        case serve::CallNews::kNone:
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          break;
        case serve::CallNews::kEvent:
          text = Strings(response.outputs.at(0)).at(0);
          break;
        case serve::CallNews::kDone:
          return text;
        case serve::CallNews::kFailed:
          return error.message();
      }
    }
  }

  const fs::path folder_;
  const char* replicas_ = "1";
  const std::vector<OptionSpec> rows_ = SessionOptionRows();
  Console console_{false};
  SteadyClock clock_;
  serve::Metrics metrics_;
  SharedResources shared_;
  Reaper reaper_;
  std::vector<std::shared_ptr<ServedEngine>> opened_;
  serve::ModelRegistry engines_;
  kserve::Repository models_;
  std::unique_ptr<ModelRepository> repository_;
};

TEST_F(ModelRepositoryTest, TheDraftsWeightsAreHeldOnceAndBothEnginesServe) {
  Open(/*is_explicit=*/false);
  const Status loaded = repository_->LoadAll();
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  ASSERT_EQ(opened_.size(), 2u);
  const Session& pair = *opened_[0]->session;
  const Session& draft = *opened_[1]->session;
  EXPECT_EQ(pair.replicas[0].draft_weights.weights.get(),
            draft.replicas[0].target_weights.weights.get());
  EXPECT_EQ(pair.backend.get(), draft.backend.get());
  EXPECT_NE(pair.engine.get(), draft.engine.get());
  EXPECT_EQ(models_.Index(/*only_ready=*/true).size(), 6u);
  const std::string answer = Ask("ensemble");
  EXPECT_NE(answer.find("two or more"), std::string::npos) << answer;
  EXPECT_EQ(Ask("tensorrt_llm_bls"), answer);
  EXPECT_EQ((*models_.Statistics("tensorrt_llm")).success.count, 1u);  // as part of the ensemble
}

TEST_F(ModelRepositoryTest, EveryEngineHasReplicasWhichShareItsWeightsAndTakeNoTurns) {
  replicas_ = "2";
  Open(/*is_explicit=*/false);
  const Status loaded = repository_->LoadAll();
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  ASSERT_EQ(opened_.size(), 2u);
  for (const std::shared_ptr<ServedEngine>& opened : opened_) {
    const std::vector<SessionReplica>& replicas = opened->session->replicas;
    ASSERT_EQ(replicas.size(), 2u);
    EXPECT_EQ(opened->session->engine->size(), 2);
    EXPECT_EQ(replicas[1].target_weights.weights, replicas[0].target_weights.weights);
    EXPECT_NE(replicas[1].turns, replicas[0].turns);
    // Engines take turns with those on the same share of the CPU.
    EXPECT_EQ(replicas[1].turns, opened_[0]->session->replicas[1].turns);
    EXPECT_EQ(replicas[1].backends, opened_[0]->session->replicas[1].backends);
  }
  for (int i = 0; i < 4; ++i) {
    const std::string answer = Ask(i % 2 == 0 ? "ensemble" : "tensorrt_llm_bls");
    EXPECT_NE(answer.find("two or more"), std::string::npos) << answer;
  }
}

TEST_F(ModelRepositoryTest, SpecialTokensAreShownWherePostprocessingSaysSo) {
  for (const bool skip : {true, false}) {
    Write("postprocessing", fmt::format(R"(backend: "python"
          input [{{name: "TOKENS_BATCH" data_type: TYPE_INT32 dims: [-1, -1]}}]
          parameters {{key: "skip_special_tokens" value {{string_value: "{}"}}}})",
                                        skip));
    Open(/*is_explicit=*/true, {"*"});
    ASSERT_TRUE(repository_->LoadAll().ok());
    const serve::TextCodec& codec = (*engines_.Find("tensorrt_llm"))->service->codec();
    const int32_t end = codec.end_ids().at(0);
    const std::string name = codec.TokenBytes(end);
    ASSERT_FALSE(name.empty());
    // The end of the answer is a token as others.
    for (const char* model : {"ensemble", "tensorrt_llm_bls"}) {
      const std::string answer = Ask(model, 60, /*end_id=*/-1);
      EXPECT_EQ(answer.find(name) == std::string::npos, skip) << model << ": " << answer;
    }
    const std::vector<int32_t> tokens = {end};
    EXPECT_EQ(Infer("postprocessing", {kserve::Int32Tensor("TOKENS_BATCH", {1, 1, 1}, tokens)}),
              skip ? "" : name);
    for (const char* model : {"tensorrt_llm", "tensorrt_llm_draft"}) {
      ASSERT_TRUE(repository_->Unload(model, /*dependents=*/false).ok());
    }
  }
}

TEST_F(ModelRepositoryTest, AModelThatCannotBeLoadedIsNamedAndTheOthersServe) {
  Write("tensorrt_llm_draft", Engine(folder_ / "nothing"));
  Open(/*is_explicit=*/true, {"ensemble"});
  EXPECT_TRUE(models_.Find("tensorrt_llm").status().code() == Code::kNotFound);
  const Status loaded = repository_->LoadAll();
  ASSERT_FALSE(loaded.ok());  // the pair needs its draft
  EXPECT_NE(loaded.message().find("nothing"), std::string::npos) << loaded.message();
  // Without the model that asks for it the target serves alone.
  fs::remove_all(folder_ / "tensorrt_llm_bls");
  repository_.reset();
  Open(/*is_explicit=*/true, {"ensemble"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  EXPECT_NE(Ask("ensemble").find("two or more"), std::string::npos);
  const Status broken = models_.Load("tensorrt_llm_draft", "");
  EXPECT_FALSE(broken.ok());
  EXPECT_NE(Ask("ensemble").find("two or more"), std::string::npos);
}

TEST_F(ModelRepositoryTest, AModelIsLoadedAndUnloadedWhileAnotherServes) {
  fs::remove_all(folder_ / "tensorrt_llm_bls");
  Open(/*is_explicit=*/true, {"ensemble"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  const std::string answer = Ask("ensemble");
  opened_.clear();  // engines live as long as they are served
  std::atomic<bool> stop{false};
  std::atomic<int> asked{0}, wrong{0};
  std::thread client([&] {
    while (!stop) {
      if (Ask("ensemble") != answer) ++wrong;
      ++asked;
    }
  });
  int64_t bytes_after_first = 0;
  for (int round = 0; round < 20; ++round) {
    const Status loaded = models_.Load("tensorrt_llm_draft", "");
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    opened_.clear();
    EXPECT_TRUE(models_.Find("tensorrt_llm_draft").ok());
    EXPECT_TRUE(models_.Unload("tensorrt_llm_draft", false).ok());
    EXPECT_EQ(models_.Find("tensorrt_llm_draft").status().code(), Code::kUnavailable);
    if (round == 4) bytes_after_first = serve::ReadProcessUsage()->resident_bytes;
  }
  const int64_t grown = serve::ReadProcessUsage()->resident_bytes - bytes_after_first;
  stop = true;
  client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(asked, 0);
  // A leaked engine would hold about 27 MiB each time.
  EXPECT_LT(grown, int64_t{64} << 20);
  EXPECT_EQ(engines_.Engines().size(), 1u);
}

TEST_F(ModelRepositoryTest, TheLastCallOfAnUnloadedEngineDoesNotWaitForItsEnd) {
  Open(/*is_explicit=*/true, {"ensemble"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  const std::shared_ptr<Turns> turns = opened_.at(0)->session->replicas[0].turns;
  opened_.clear();
  std::shared_ptr<serve::GenerateService> service = (*engines_.Find("tensorrt_llm"))->service;
  serve::TextRequest request;
  request.text = "tandem";
  request.max_tokens = 900;
  request.ignore_eos = true;
  std::unique_ptr<serve::TextStream> stream = service->Start(std::move(request));
  turns->Take();  // as another engine does that is being made: this one cannot end meanwhile
  ASSERT_TRUE(models_.Unload("tensorrt_llm", false).ok());
  std::future<void> last_call = std::async(std::launch::async, [&] {
    stream.reset();
    service.reset();
  });
  EXPECT_EQ(last_call.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  turns->GiveBack();
}

TEST_F(ModelRepositoryTest, UnloadingAPartUnloadsTheDoorsThatLeadToIt) {
  Open(/*is_explicit=*/true, {"*"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  ASSERT_TRUE(models_.Unload("tensorrt_llm", false).ok());
  for (const char* name : {"ensemble", "tensorrt_llm_bls", "tensorrt_llm", "preprocessing"}) {
    EXPECT_EQ(models_.Find(name).status().code(), Code::kUnavailable) << name;
  }
  EXPECT_TRUE(models_.Find("tensorrt_llm_draft").ok());
  // Loading a chain loads its parts.
  ASSERT_TRUE(models_.Load("ensemble", "").ok());
  EXPECT_NE(Ask("ensemble").find("two or more"), std::string::npos);
  ASSERT_TRUE(models_.Unload("ensemble", /*dependents=*/true).ok());
  EXPECT_FALSE(models_.Find("tensorrt_llm").ok());
  EXPECT_FALSE(models_.Load("no such model", "").ok());
  EXPECT_FALSE(models_.Load("../tensorrt_llm", "").ok());
}

TEST_F(ModelRepositoryTest, AReloadBringsBackWhatDependsOnTheModel) {
  Open(/*is_explicit=*/true, {"*"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  const std::string answer = Ask("ensemble");
  // A configuration that cannot be read changes nothing.
  EXPECT_FALSE(models_.Load("ensemble", R"({"nonsense": 1})").ok());
  EXPECT_EQ(Ask("ensemble"), answer);
  const Status reloaded = models_.Load("tensorrt_llm", "");
  EXPECT_TRUE(reloaded.ok()) << reloaded.message();
  EXPECT_EQ(models_.Index(/*only_ready=*/true).size(), 6u);
  EXPECT_EQ(Ask("tensorrt_llm_bls"), answer);
  // A stage's parts are not its own.
  ASSERT_TRUE(models_.Unload("preprocessing", /*dependents=*/true).ok());
  EXPECT_TRUE(models_.Find("tensorrt_llm").ok());
}

TEST_F(ModelRepositoryTest, AReloadThatFailsLeavesTheOldModelAndItsChains) {
  Open(/*is_explicit=*/true, {"*"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  const std::string answer = Ask("ensemble");
  const std::string config = Engine(*EmbeddedPairFolder() / "target");
  Write("tensorrt_llm", Engine(folder_ / "nothing"));
  const Status failed = models_.Load("tensorrt_llm", "");
  EXPECT_NE(failed.message().find("it serves as it was before"), std::string::npos)
      << failed.message();
  EXPECT_EQ(models_.Index(/*only_ready=*/true).size(), 6u);
  EXPECT_TRUE(models_.Ready());
  EXPECT_EQ(Ask("ensemble"), answer);
  Write("tensorrt_llm", config);
  EXPECT_TRUE(models_.Load("tensorrt_llm", "").ok());
  EXPECT_EQ(Ask("tensorrt_llm_bls"), answer);
}

TEST_F(ModelRepositoryTest, ChainsThatEndedWithAFailedReloadComeBackWithTheNextOne) {
  const fs::path copy = folder_.parent_path() / (folder_.filename().string() + "_target");
  fs::remove_all(copy);
  fs::copy(*EmbeddedPairFolder() / "target", copy);
  Write("tensorrt_llm", Engine(copy));
  Open(/*is_explicit=*/true, {"*"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  const std::string answer = Ask("ensemble");
  fs::rename(copy, copy.string() + ".away");
  EXPECT_FALSE(models_.Load("tensorrt_llm", "").ok()) << "neither the new one nor the old";
  EXPECT_FALSE(models_.Find("ensemble").ok());
  fs::rename(copy.string() + ".away", copy);
  ASSERT_TRUE(models_.Load("tensorrt_llm", "").ok());
  EXPECT_EQ(Ask("ensemble"), answer);
  fs::remove_all(copy);
}

TEST_F(ModelRepositoryTest, StagesThatTwoChainsShareGoOnWithTheEngineThatStays) {
  fs::remove_all(folder_ / "tensorrt_llm_bls");
  const char* kChain = R"(platform: "ensemble" ensemble_scheduling {{ step [
                          {{model_name: "preprocessing" model_version: -1}},
                          {{model_name: "{}" model_version: -1}}] }})";
  Write("a_chain", fmt::format(fmt::runtime(kChain), "tensorrt_llm_draft"));
  Open(/*is_explicit=*/true);
  ASSERT_TRUE(repository_->LoadAll().ok());
  ASSERT_TRUE(models_.Load("ensemble", "").ok());
  EXPECT_FALSE(models_.Find("tensorrt_llm_draft").ok()) << "no chain that is loaded needs it";
  ASSERT_TRUE(models_.Load("a_chain", "").ok());
  const std::string answer = Ask("a_chain");
  ASSERT_TRUE(models_.Unload("tensorrt_llm", false).ok());
  EXPECT_FALSE(models_.Find("ensemble").ok());
  EXPECT_TRUE(models_.Find("preprocessing").ok());
  EXPECT_EQ(Ask("a_chain"), answer);
}

TEST_F(ModelRepositoryTest, ModelsThatAreEachOthersPartsAreRefused) {
  const char* kChain = R"(platform: "ensemble" ensemble_scheduling {{ step [
                          {{model_name: "{}" model_version: -1}}] }})";
  Write("a", fmt::format(fmt::runtime(kChain), "b"));
  Write("b", fmt::format(fmt::runtime(kChain), "a"));
  Open(/*is_explicit=*/true);
  EXPECT_TRUE(repository_->LoadAll().ok());
  const Status refused = models_.Load("a", "");
  EXPECT_NE(refused.message().find("part of itself"), std::string::npos) << refused.message();
  EXPECT_TRUE(models_.Load("ensemble", "").ok());
}

TEST_F(ModelRepositoryTest, WeightsThatWereWrittenAnewAreReadAnew) {
  const fs::path copy = folder_.parent_path() / (folder_.filename().string() + "_draft");
  fs::remove_all(copy);
  fs::copy(*EmbeddedPairFolder() / "draft", copy);
  Write("tensorrt_llm_draft", Engine(copy));
  Open(/*is_explicit=*/true, {"*"});
  ASSERT_TRUE(repository_->LoadAll().ok());
  const auto weights = opened_[1]->session->replicas[0].target_weights.weights;
  fs::last_write_time(copy / "config.json", fs::file_time_type::clock::now());
  ASSERT_TRUE(models_.Load("tensorrt_llm_draft", "").ok());
  EXPECT_NE(opened_.back()->session->replicas[0].target_weights.weights, weights);
  fs::remove_all(copy);
}

}  // namespace
}  // namespace tandem::apps
