// Engines whose ranks are processes (here threads that have what processes would have): they give
// the tokens of one rank, end with their leader, and fail where one of them leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "comm/testing/join_in_threads.h"
#include "runtime/rank_agreement.h"
#include "runtime/testing/ranked_models.h"
#include "runtime/testing/triples.h"

namespace tandem {
namespace {

EngineOptions Options() {
  EngineOptions options = FamilyOptions();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  return options;
}

// The processes of an engine; what each was started with.
class Processes {
 public:
  Processes(const std::string& name, const RankSplit& split, const EngineOptions& options) {
    for (JoinedRanks& joined : JoinInThreads(split.count(), split.stages)) {
      const RankPlace place = split.PlaceOf(static_cast<int>(ranks_.size()));
      const RankPlace of_draft{place.rank, place.ranks};
      auto made = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false});
      EXPECT_TRUE(made.ok()) << made.status().message();
      ops::Backend& backend = *backends_.emplace_back(std::move(*made));
      ranks_.push_back(
          {.backend = &backend,
           .ranks = std::move(joined.ranks),
           .target = LoadRank(name, DType::kF32, place, backend, options.max_seq_len),
           .draft = LoadRank(name, kFamilyDraftType, of_draft, backend, options.max_seq_len)});
      RankProcesses& links = links_.emplace_back();
      links.on_machine = split.count();
      for (auto& link : joined.links) links.links.push_back(std::move(link));
    }
    ended_.resize(ranks_.size());
  }
  ~Processes() { Join(); }

  // Starts those that follow, then the leader.
  Result<std::unique_ptr<Engine>> Start(const EngineOptions& options,
                                        const std::function<void(EngineOptions&)>& others = {}) {
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      EngineOptions own = options;
      if (others) others(own);
      threads_.emplace_back([this, rank, own] {
        const EngineRank mine = std::move(ranks_[rank]);
        ended_[rank] = FollowEngine(own, mine, clock_, links_[rank]);
        links_[rank].links.clear();
      });
    }
    const EngineRank leader = std::move(ranks_.front());
    return Engine::Create(options, {leader}, clock_, nullptr, &links_.front());
  }
  // As if the process had been killed.
  void Kill(size_t rank) { links_[rank].links.front()->End(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  const Status& ended(size_t rank) const { return ended_[rank]; }

 private:
  SteadyClock clock_;
  std::vector<std::unique_ptr<ops::Backend>> backends_;
  std::vector<EngineRank> ranks_;
  std::vector<RankProcesses> links_;
  std::vector<Status> ended_;
  std::vector<std::thread> threads_;
};

std::vector<Request> Requests(int64_t vocab) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request request = SimpleRequest(CountingPrompt(2 + 14 * i, i, vocab), 40);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    if (i == 4) request.constraint = std::make_shared<Triples>(static_cast<int32_t>(vocab));
    requests.push_back(std::move(request));
  }
  return requests;
}

class ProcessRanksEngineTest : public ::testing::TestWithParam<std::tuple<std::string, RankSplit>> {
};

TEST_P(ProcessRanksEngineTest, GiveTheTokensOfOneRankAndEndWithTheirLeader) {
  const auto& [name, split] = GetParam();
  const SteadyClock clock;
  const ModelSpec spec = FamilySpec(name);
  const auto expected =
      RunRequests(*MakeFamilyEngine(name, FamilyOptions(), clock), Requests(spec.vocab_size));
  for (const bool scarce : {false, true}) {
    SCOPED_TRACE(scarce ? "few blocks" : "enough blocks");
    EngineOptions options = Options();
    if (scarce) options.kv_cache_tokens = 16 * 9;
    Processes processes(name, split, options);
    {
      auto engine = processes.Start(options);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      for (int again = 0; again < 2; ++again) {  // then with the prefixes of the first time
        const auto got = RunRequests(**engine, Requests(spec.vocab_size));
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens) << "request " << i;
        }
      }
      EXPECT_GT((*engine)->Stats().drafts_accepted, 0);
    }
    processes.Join();
    for (int rank = 1; rank < split.count(); ++rank) {
      const Status& ended = processes.ended(static_cast<size_t>(rank));
      EXPECT_TRUE(ended.ok()) << ended.message();
    }
  }
}

std::string ParamName(const testing::TestParamInfo<std::tuple<std::string, RankSplit>>& info) {
  return std::get<0>(info.param) + NameOf(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Two, ProcessRanksEngineTest,
                         ::testing::Combine(::testing::Values("mistral", "gemma2", "qwen3_moe"),
                                            ::testing::Values(RankSplit{2, 1}, RankSplit{1, 2})),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Four, ProcessRanksEngineTest,
                         ::testing::Combine(::testing::Values("mistral"),
                                            ::testing::Values(RankSplit{4, 1}, RankSplit{2, 2})),
                         ParamName);

class ProcessThatLeavesTest : public ::testing::TestWithParam<size_t> {};

TEST_P(ProcessThatLeavesTest, EveryOpenRequestIsAnsweredAndTheOthersEnd) {
  Processes processes("mistral", {2, 2}, Options());
  {
    auto engine = processes.Start(Options());
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const RequestId id = (*engine)->Submit(SimpleRequest(CountingPrompt(10, 1), 100)).value();
    for (int i = 0; i < 5; ++i) (*engine)->Step();
    processes.Kill(GetParam());
    Outputs outputs;
    RunToEnd(**engine, outputs, 1);
    EXPECT_EQ((outputs[{id, 0}].finish), FinishReason::kFailed);
    EXPECT_EQ((outputs[{id, 0}].error.code()), Code::kUnavailable);
    EXPECT_FALSE((*engine)->Submit(SimpleRequest({1, 2}, 5)).ok());
  }
  processes.Join();
  EXPECT_EQ(processes.ended(GetParam()).code(), Code::kUnavailable);
}

TEST_P(ProcessThatLeavesTest, IsNoticedWithoutAStep) {
  Processes processes("mistral", {2, 2}, Options());
  {
    auto engine = processes.Start(Options());
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    (*engine)->Step();
    EXPECT_TRUE((*engine)->Stats().failure.ok());
    processes.Kill(GetParam());
    // As the idle loop does, which wakes five times a second.
    while ((*engine)->Stats().failure.ok()) {
      (*engine)->Step();
      std::this_thread::yield();
    }
    EXPECT_EQ((*engine)->Stats().failure.code(), Code::kUnavailable);
    EXPECT_THAT((*engine)->Stats().failure.message(), ::testing::HasSubstr("has left"));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, ProcessThatLeavesTest, ::testing::Values(1, 3));

TEST(ProcessesWithOtherOptionsTest, AreRefusedOnBothSides) {
  Processes processes("mistral", {2, 1}, Options());
  const auto engine =
      processes.Start(Options(), [](EngineOptions& others) { others.max_batch_size = 3; });
  EXPECT_EQ(engine.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(engine.status().message(), ::testing::HasSubstr("the same command line"));
  processes.Join();
  EXPECT_EQ(processes.ended(1).code(), Code::kFailedPrecondition);
}

TEST(ProcessesWithLessMemoryTest, GiveAllTheirNumberOfBlocks) {
  EngineOptions little = Options();
  little.kv_cache_bytes = 1 << 20;
  const auto blocks = [](const EngineOptions& options, int64_t kv_cache_bytes) {
    Processes processes("mistral", {2, 1}, options);
    const auto engine = processes.Start(
        options, [&](EngineOptions& others) { others.kv_cache_bytes = kv_cache_bytes; });
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return (*engine)->Stats().kv.total_blocks;
  };
  const int32_t expected = blocks(little, little.kv_cache_bytes);
  EXPECT_GT(blocks(Options(), Options().kv_cache_bytes), expected);
  EXPECT_EQ(blocks(Options(), little.kv_cache_bytes), expected);
  EXPECT_EQ(blocks(little, Options().kv_cache_bytes), expected);
}

}  // namespace
}  // namespace tandem
