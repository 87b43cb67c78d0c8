// Engines whose models are split over ranks, threads that compute on the CPU or each on a GPU of
// its own: every family gives the tokens of one rank, greedy and drawn, with drafts, shared
// prefixes, chunks, preemption and constraints; and a rank that fails ends the open requests and
// nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/cuda/cuda_ranks.h"
#include "comm/in_process.h"
#include "model/rank_source.h"
#include "ops/testing/failing_backend.h"
#include "runtime/testing/family_engine.h"
#include "runtime/testing/triples.h"

namespace tandem {
namespace {

// A model's weights on every rank, or its parts of them.
struct RankedModels {
  std::vector<std::unique_ptr<ops::Backend>> backends;
  std::vector<EngineRank> ranks;
};

EngineModel LoadRank(const std::string& name, DType dtype, const RankPlace& place,
                     ops::Backend& backend, int64_t max_seq_len) {
  const auto reader = HfReader::Open(FixturesFolder() / name, dtype);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  const auto spec = RankSpec((*reader)->spec(), place);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  RankSource source(**reader, *spec);
  auto weights = LoadWeights(source, backend, max_seq_len);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  return {*weights, name};
}

std::unique_ptr<ops::Backend> MakeRankBackend(int rank) {
  auto backend = TestOnCuda() ? ops::MakeCudaBackend({.device = rank, .batch_invariant = true})
                              : ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false});
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  return std::move(*backend);
}

std::vector<std::unique_ptr<Communicator>> MakeComms(const RankedModels& models) {
  if (!TestOnCuda()) return MakeInProcessRanks(static_cast<int>(models.backends.size()));
  std::vector<ops::Backend*> gpus;
  for (const auto& backend : models.backends) gpus.push_back(backend.get());
  auto comms = MakeCudaRanks(gpus);
  EXPECT_TRUE(comms.ok()) << comms.status().message();
  return std::move(*comms);
}

RankedModels LoadRanks(const std::string& name, int size, bool split_draft, int64_t max_seq_len) {
  RankedModels models;
  for (int rank = 0; rank < size; ++rank) {
    const RankPlace place{rank, size};
    ops::Backend& backend = *models.backends.emplace_back(MakeRankBackend(rank));
    EngineRank& one = models.ranks.emplace_back();
    one.backend = &backend;
    one.target = LoadRank(name, FamilyTargetType(), place, backend, max_seq_len);
    one.draft =
        LoadRank(name, kFamilyDraftType, split_draft ? place : RankPlace{}, backend, max_seq_len);
  }
  auto comms = MakeComms(models);
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    models.ranks[rank].ranks = std::move(comms[rank]);
  }
  return models;
}

// As many GPUs as ranks, where the ranks are GPUs.
bool HasRanks(int size) { return !TestOnCuda() || ops::NumCudaDevices() >= size; }

EngineOptions Options() {
  EngineOptions options = FamilyOptions();
  options.executor = TestExecutor();
  return options;
}

std::vector<Request> Requests(int64_t vocab) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request request = SimpleRequest(CountingPrompt(2 + 14 * i, i, vocab), 40);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    requests.push_back(std::move(request));
  }
  return requests;
}

// A family of each way to add to the stream, with grouped, few and latent heads, experts, windows
// and ALiBi.
const std::vector<std::string>& Models() {
  static const std::vector<std::string> names = {
      "mistral",        "qwen2",   "gemma2",    "bloom",  "gptj",
      "chatglm2_32k",   "mixtral", "qwen3_moe", "cohere", "deepseek_v2_lite",
      "gpt_bigcode_mqa"};
  return names;
}

class RanksEngineTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::unique_ptr<Engine> Make(const EngineOptions& options, int size, bool split_draft = true) {
    const auto& [name, most] = GetParam();
    if (size == 1) return MakeFamilyEngine(name, options, clock_);
    models_.ranks.clear();  // before their backends
    models_ = LoadRanks(name, size, split_draft, options.max_seq_len);
    if (options.draft_mode == DraftMode::kOff) {
      for (EngineRank& rank : models_.ranks) rank.draft = {};
    }
    auto engine = Engine::Create(options, models_.ranks, clock_);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  SteadyClock clock_;
  RankedModels models_;
};

TEST_P(RanksEngineTest, GivesTheTokensOfOneRank) {
  const auto& [name, size] = GetParam();
  if (!HasRanks(size)) GTEST_SKIP() << "fewer GPUs here";
  const int64_t vocab = FamilySpec(name).vocab_size;
  // In 16 bits the sums of several ranks are rounded otherwise than that of one.
  const auto expected = RunRequests(*Make(Options(), TestOnCuda() ? size : 1), Requests(vocab));
  const auto expect_same = [&](Engine& engine) {
    const auto got = RunRequests(engine, Requests(vocab));
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens) << "request " << i;
    }
  };
  expect_same(*Make(Options(), size));
  EngineOptions options = Options();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  for (const bool split_draft : {true, false}) {
    for (const bool scarce : {false, true}) {
      SCOPED_TRACE(std::string(split_draft ? "a split draft" : "a whole draft") +
                   (scarce ? ", few blocks" : ", enough blocks"));
      if (scarce) {
        const ModelSpec spec = FamilySpec(name);
        options.kv_cache_bytes =
            16 * 9 *
            (spec.KvBytesPerToken(FamilyTargetType()) + spec.KvBytesPerToken(kFamilyDraftType));
      } else {
        options.kv_cache_bytes = 8 << 20;
      }
      const auto engine = Make(options, size, split_draft);
      expect_same(*engine);
      expect_same(*engine);  // with the prefixes of the first time
      EXPECT_GT(engine->Stats().drafts_accepted, 0);
    }
  }
}

TEST_P(RanksEngineTest, MasksOfConstraintsReachEveryRank) {
  const auto& [name, size] = GetParam();
  if (!HasRanks(size)) GTEST_SKIP() << "fewer GPUs here";
  const auto vocab = static_cast<int32_t>(FamilySpec(name).vocab_size);
  std::vector<Request> requests = Requests(vocab);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 != 2) requests[i].constraint = std::make_shared<Triples>(vocab);
  }
  const auto expected = RunRequests(*Make(Options(), TestOnCuda() ? size : 1), requests);
  EngineOptions options = Options();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  for (const int32_t lookup_ngram : {0, 2}) {
    for (const bool forced : {false, true}) {
      SCOPED_TRACE("lookup " + std::to_string(lookup_ngram) + (forced ? ", forced" : ""));
      options.lookup_ngram = lookup_ngram;
      options.draft_forced = forced;
      const auto engine = Make(options, size);
      const auto got = RunRequests(*engine, requests);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens) << "request " << i;
      }
      EXPECT_GT(engine->Stats().drafts_accepted, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Two, RanksEngineTest,
                         ::testing::Combine(::testing::ValuesIn(Models()), ::testing::Values(2)),
                         [](const auto& info) { return std::get<0>(info.param); });
INSTANTIATE_TEST_SUITE_P(Four, RanksEngineTest,
                         ::testing::Combine(::testing::Values("mistral", "qwen3_moe"),
                                            ::testing::Values(4)),
                         [](const auto& info) { return std::get<0>(info.param); });

// ---- Ranks that fail ----

class RanksFailureTest : public ::testing::TestWithParam<size_t> {
 protected:
  static constexpr int kRanks = 4;
  void SetUp() override {
    if (!HasRanks(kRanks)) GTEST_SKIP() << "fewer GPUs here";
  }

  // Runs three requests, of which `constrained` have a constraint and which all fail: their errors.
  std::vector<Status> Fail(Engine& engine, int32_t constrained) {
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 3; ++i) {
      Request request = SimpleRequest(CountingPrompt(10, i), 100);
      if (i < constrained) {
        request.constraint =
            std::make_shared<Triples>(static_cast<int32_t>(FamilySpec("mistral").vocab_size));
      }
      ids.push_back(engine.Submit(std::move(request)).value());
    }
    Outputs outputs;
    RunToEnd(engine, outputs, ids.size());
    std::vector<Status> errors;
    for (const RequestId id : ids) {
      EXPECT_EQ((outputs[{id, 0}].finish), FinishReason::kFailed);
      errors.push_back(outputs[{id, 0}].error);
    }
    EXPECT_FALSE(engine.Submit(SimpleRequest({1, 2}, 5)).ok());
    EXPECT_FALSE(engine.Stats().failure.ok());
    return errors;
  }

  SteadyClock clock_;
  RankedModels models_;
};

TEST_P(RanksFailureTest, EveryOpenRequestIsAnsweredWhenARankLosesItsDevice) {
  for (const int32_t constrained : {0, 2, 3}) {
    for (const int waits : {1, 2, 7, 9}) {
      SCOPED_TRACE(std::to_string(constrained) + " constrained, lost after " +
                   std::to_string(waits) + " waits");
      models_.ranks.clear();
      models_ = LoadRanks("mistral", kRanks, true, Options().max_seq_len);
      ops::FailingBackend failing(*models_.ranks[GetParam()].backend);
      models_.ranks[GetParam()].backend = &failing;
      const auto engine = Engine::Create(Options(), models_.ranks, clock_).value();
      failing.LoseAfter(waits);
      for (const Status& error : Fail(*engine, constrained)) {
        EXPECT_EQ(error.code(), Code::kUnavailable);
        EXPECT_THAT(error.message(), testing::HasSubstr("the device is lost"));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, RanksFailureTest, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace tandem
