// Engines whose ranks are processes (here threads that have what processes would have): they give
// the tokens of one rank, end with their leader, and fail where one of them leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "comm/gpu_links.h"
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

// A model over processes: how it is split, and how many ranks each process has.
struct ProcessSplit {
  RankLayout ranks;
  int here = 1;
  int num_processes() const { return static_cast<int>(ranks.count()) / here; }
};
std::string NameOf(const ProcessSplit& split) {
  return NameOf(split.ranks) + "In" + std::to_string(split.num_processes());
}

// The processes of an engine; what each was started with. On the CPU every rank has connections of
// its own; GPUs have those of their process.
class Processes {
 public:
  Processes(const std::string& name, const ProcessSplit& split, const EngineOptions& options) {
    const int with_connections =
        TestOnCuda() ? split.num_processes() : static_cast<int>(split.ranks.count());
    joined_ = JoinInThreads(with_connections, split.ranks.StagesOf());
    ranks_.resize(static_cast<size_t>(split.num_processes()));
    links_.resize(ranks_.size());
    ended_.resize(ranks_.size());
    for (int rank = 0; rank < split.ranks.count(); ++rank) {
      const RankPlace place = split.ranks.TargetAt(rank), of_draft = split.ranks.DraftAt(rank);
      ops::Backend& backend = *backends_.emplace_back(MakeRankBackend(rank));
      ranks_[static_cast<size_t>(rank / split.here)].push_back(
          {.backend = &backend,
           .ranks = {},
           .target = LoadRank(name, FamilyTargetType(), place, backend, options.max_seq_len),
           .draft = LoadRank(name, kFamilyDraftType, of_draft, backend, options.max_seq_len)});
    }
    const int step = with_connections / split.num_processes();
    for (size_t process = 0; process < ranks_.size(); ++process) {
      links_[process].on_machine = split.num_processes();
      for (auto& link : joined_[process * static_cast<size_t>(step)].links) {
        if (link->peer() % step == 0) links_[process].links.push_back(std::move(link));
      }
    }
    if (TestOnCuda()) {
      MakeGpuRanks(static_cast<int>(split.ranks.stages));
    } else {
      for (size_t rank = 0; rank < joined_.size(); ++rank) {
        const auto here = static_cast<size_t>(split.here);
        ranks_[rank / here][rank % here].ranks = std::move(joined_[rank].ranks);
      }
    }
  }
  ~Processes() { Join(); }

  // Starts those that follow, then the leader.
  Result<std::unique_ptr<Engine>> Start(const EngineOptions& options,
                                        const std::function<void(EngineOptions&)>& others = {}) {
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      EngineOptions own = options;
      if (others) others(own);
      threads_.emplace_back([this, rank, own] {
        const std::vector<EngineRank> mine = std::move(ranks_[rank]);
        ended_[rank] = FollowEngine(own, mine, clock_, links_[rank]);
        links_[rank].links.clear();
      });
    }
    const std::vector<EngineRank> leader = std::move(ranks_.front());
    return Engine::Create(options, leader, clock_, nullptr, &links_.front());
  }
  // As if the process had been killed.
  void Kill(size_t rank) { links_[rank].links.front()->End(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  const Status& ended(size_t rank) const { return ended_[rank]; }

 private:
  // All processes at once, because they wait for each other.
  void MakeGpuRanks(int stages) {
    std::vector<std::thread> threads;
    for (size_t process = 0; process < ranks_.size(); ++process) {
      threads.emplace_back([this, process, stages] {
        std::vector<ops::Backend*> gpus;
        for (const EngineRank& rank : ranks_[process]) gpus.push_back(rank.backend);
        auto made = MakeCudaRanksOfProcesses(gpus, std::move(joined_[process].ranks), stages);
        ASSERT_TRUE(made.ok()) << made.status().message();
        for (size_t i = 0; i < gpus.size(); ++i) ranks_[process][i].ranks = std::move((*made)[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  SteadyClock clock_;
  std::vector<JoinedRanks> joined_;
  std::vector<std::unique_ptr<ops::Backend>> backends_;
  std::vector<std::vector<EngineRank>> ranks_;  // by process
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

// What one process answers. In 16 bits the sums of several ranks are rounded otherwise than that of
// one; stages change nothing.
auto ExpectedOf(const std::string& name, const RankLayout& split, std::vector<Request> requests) {
  const SteadyClock clock;
  EngineOptions options = FamilyOptions();
  options.draft_mode = DraftMode::kOff;
  const RankLayout reference = {TestOnCuda() ? split.ranks : 1, 1};
  if (reference.count() == 1) {
    return RunRequests(*MakeFamilyEngine(name, options, clock), std::move(requests));
  }
  RankedModels models = LoadRanks(name, WithSplitDraft(reference), options.max_seq_len);
  for (EngineRank& rank : models.ranks) rank.draft = {};
  const auto engine = Engine::Create(options, models.ranks, clock).value();
  return RunRequests(*engine, std::move(requests));
}

class ProcessRanksEngineTest
    : public ::testing::TestWithParam<std::tuple<std::string, ProcessSplit>> {
 protected:
  void SetUp() override {
    const ProcessSplit& split = std::get<1>(GetParam());
    if (!HasRanks(split.ranks.count())) GTEST_SKIP() << "not enough GPUs";
    if (TestOnCuda() && !NcclVersion().ok()) GTEST_SKIP() << "needs NCCL";
    if (TestOnCuda() && split.ranks.own_draft_ranks() > 0) {
      GTEST_SKIP() << "GPUs of several processes have no draft of its own";
    }
  }
};

TEST_P(ProcessRanksEngineTest, GiveTheTokensOfOneRankAndEndWithTheirLeader) {
  const auto& [name, split] = GetParam();
  const ModelSpec spec = FamilySpec(name);
  const auto expected = ExpectedOf(name, split.ranks, Requests(spec.vocab_size));
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
    for (int process = 1; process < split.num_processes(); ++process) {
      const Status& ended = processes.ended(static_cast<size_t>(process));
      EXPECT_TRUE(ended.ok()) << ended.message();
    }
  }
}

std::string ParamName(const testing::TestParamInfo<std::tuple<std::string, ProcessSplit>>& info) {
  return std::get<0>(info.param) + NameOf(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(
    Two, ProcessRanksEngineTest,
    ::testing::Combine(::testing::Values("mistral", "gemma2", "qwen3_moe"),
                       ::testing::Values(ProcessSplit{WithSplitDraft({2, 1}), 1},
                                         ProcessSplit{WithSplitDraft({1, 2})})),
    ParamName);
INSTANTIATE_TEST_SUITE_P(OwnDraft, ProcessRanksEngineTest,
                         ::testing::Combine(::testing::Values("mistral", "gemma2"),
                                            ::testing::Values(ProcessSplit{WithOwnDraft({1, 1}, 1)},
                                                              ProcessSplit{WithOwnDraft({2, 1}, 2)},
                                                              ProcessSplit{
                                                                  WithOwnDraft({1, 2}, 1)})),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(
    Four, ProcessRanksEngineTest,
    ::testing::Combine(::testing::Values("mistral"),
                       ::testing::Values(ProcessSplit{WithSplitDraft({4, 1}), 1},
                                         ProcessSplit{WithSplitDraft({2, 2}), 1},
                                         ProcessSplit{WithSplitDraft({4, 1}), 2},
                                         ProcessSplit{WithSplitDraft({2, 2}), 2})),
    ParamName);

class ProcessThatLeavesTest : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (!HasRanks(split().ranks.count())) GTEST_SKIP() << "not enough GPUs";
    if (TestOnCuda() && !NcclVersion().ok()) GTEST_SKIP() << "needs NCCL";
  }
  static ProcessSplit split() { return {{TestOnCuda() ? 1 : 2, 2}, 1}; }
  static size_t killed() { return TestOnCuda() ? 1 : GetParam(); }
};

TEST_P(ProcessThatLeavesTest, EveryOpenRequestIsAnsweredAndTheOthersEnd) {
  Processes processes("mistral", split(), Options());
  {
    auto engine = processes.Start(Options());
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const RequestId id = (*engine)->Submit(SimpleRequest(CountingPrompt(10, 1), 100)).value();
    for (int i = 0; i < 5; ++i) (*engine)->Step();
    processes.Kill(killed());
    Outputs outputs;
    RunToEnd(**engine, outputs, 1);
    EXPECT_EQ((outputs[{id, 0}].finish), FinishReason::kFailed);
    EXPECT_EQ((outputs[{id, 0}].error.code()), Code::kUnavailable);
    EXPECT_FALSE((*engine)->Submit(SimpleRequest({1, 2}, 5)).ok());
  }
  processes.Join();
  EXPECT_EQ(processes.ended(killed()).code(), Code::kUnavailable);
}

TEST_P(ProcessThatLeavesTest, IsNoticedWithoutAStep) {
  Processes processes("mistral", split(), Options());
  {
    auto engine = processes.Start(Options());
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    (*engine)->Step();
    EXPECT_TRUE((*engine)->Stats().failure.ok());
    processes.Kill(killed());
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
  if (TestOnCuda()) GTEST_SKIP() << "of the CPU";
  Processes processes("mistral", {{2, 1}, 1}, Options());
  const auto engine =
      processes.Start(Options(), [](EngineOptions& others) { others.max_batch_size = 3; });
  EXPECT_EQ(engine.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(engine.status().message(), ::testing::HasSubstr("--max_batch_size is not the same"));
  processes.Join();
  EXPECT_EQ(processes.ended(1).code(), Code::kFailedPrecondition);
}

TEST(ProcessesWithLessMemoryTest, GiveAllTheirNumberOfBlocks) {
  if (TestOnCuda()) GTEST_SKIP() << "of the CPU";
  EngineOptions little = Options();
  little.kv_cache_bytes = 1 << 20;
  const auto blocks = [](const EngineOptions& options, int64_t kv_cache_bytes) {
    Processes processes("mistral", {{2, 1}, 1}, options);
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
