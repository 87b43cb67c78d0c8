// Engines behind one door: the answers of one engine, prefixes where they are cached, and what
// happens when a replica is full or fails.
#include "runtime/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "runtime/event_queue.h"
#include "runtime/request/validate_request.h"
#include "runtime/testing/losing_executor.h"
#include "runtime/testing/test_engine.h"
#include "runtime/testing/test_llama.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class ReplicasTest : public testing::Test {
 protected:
  // Each of `lose_after` is a replica, and after how many steps its device is lost; -1: never.
  std::unique_ptr<Replicas> Make(const std::vector<int>& lose_after,
                                 const EngineOptions& options = SmallOptions()) {
    engines_.clear();
    std::vector<std::unique_ptr<Engine>> engines;
    auto events = std::make_shared<EventQueue>(0);
    for (const int steps : lose_after) {
      TestSetup setup;
      setup.options = options;
      setup.events = events;
      if (steps >= 0) {
        setup.wrap_executor = [steps](std::unique_ptr<Executor> inner) {
          return std::make_unique<LosingExecutor>(std::move(inner), steps);
        };
      }
      engines.push_back(MakeTestEngine(setup, clock_));
      engines_.push_back(engines.back().get());
    }
    return std::make_unique<Replicas>(std::move(engines), std::move(events));
  }

  // Reads events until this many choices have ended.
  static Outputs Read(Replicas& replicas, size_t num_choices) {
    Outputs outputs;
    Event event;
    for (size_t ended = 0; ended < num_choices;) {
      if (!replicas.PopEvent(event, std::chrono::seconds(30))) {
        ADD_FAILURE() << "no event for 30 s";
        break;
      }
      Output& output = outputs[{event.request, event.choice}];
      EXPECT_EQ(output.finish, FinishReason::kNone) << "an event after the last one";
      for (const SampledToken& token : event.tokens) output.tokens.push_back(token.token);
      output.finish = event.finish;
      output.usage = event.usage;
      output.error = event.error;
      ended += event.finish != FinishReason::kNone;
    }
    return outputs;
  }

  // Of one request.
  static Output Ask(Replicas& replicas, const Request& request) {
    const RequestId id = replicas.Submit(request).value();
    return Read(replicas, 1)[{id, 0}];
  }

  SteadyClock clock_;
  std::vector<Engine*> engines_;
};

TEST_F(ReplicasTest, TwoGiveTheAnswersOfOne) {
  std::vector<Request> requests;
  size_t num_choices = 0;
  for (int32_t i = 0; i < 24; ++i) {
    Request request = SimpleRequest(CountingPrompt(3 + 5 * (i % 7), i), 30);
    request.num_choices = 1 + i % 3;
    num_choices += static_cast<size_t>(request.num_choices);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    // Those without a seed get theirs from the engine's, by their number.
    if (i % 4 == 1) request.seed.reset();
    requests.push_back(std::move(request));
  }
  EngineOptions options = SmallOptions();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  std::vector<Outputs> outputs;
  for (const size_t size : {1, 2, 3}) {
    const auto replicas = Make(std::vector<int>(size, -1), options);
    replicas->Start();
    for (const Request& request : requests) ASSERT_TRUE(replicas->Submit(request).ok());
    outputs.push_back(Read(*replicas, num_choices));
    for (Engine* engine : engines_) {
      engine->Stop();  // its figures are complete
      EXPECT_GT(engine->Stats().requests_finished, 4) << "another replica does nearly everything";
    }
    const EngineStats stats = replicas->Stats();
    EXPECT_EQ(stats.requests_finished, static_cast<int64_t>(requests.size()));
    EXPECT_EQ(stats.max_running, static_cast<int32_t>(size) * options.max_batch_size);
    EXPECT_TRUE(stats.failure.ok());
  }
  for (const Outputs& other : outputs) {
    ASSERT_EQ(other.size(), outputs.front().size());
    for (const auto& [choice, output] : outputs.front()) {
      EXPECT_EQ(other.at(choice).tokens, output.tokens) << choice.first << ", " << choice.second;
    }
  }
}

TEST_F(ReplicasTest, AConversationFindsItsPrefixAgainBesideOthers) {
  const auto replicas = Make({-1, -1});
  replicas->Start();
  std::vector<std::vector<int32_t>> talks;
  for (int32_t i = 0; i < 6; ++i) talks.push_back(CountingPrompt(40, 7 * i));
  for (int turn = 0; turn < 4; ++turn) {
    for (std::vector<int32_t>& talk : talks) {
      const Output output = Ask(*replicas, SimpleRequest(talk, 8));
      // All full blocks of the turn before, whose answer is part of this prompt.
      const int64_t known = turn == 0 ? 0 : std::ssize(talk) - 8 - 4 - 8;
      EXPECT_GE(output.usage.cached_tokens, known);
      talk.insert(talk.end(), output.tokens.begin(), output.tokens.end());
      for (int32_t i = 0; i < 4; ++i) talk.push_back(turn + i);
    }
  }
  for (Engine* engine : engines_) {
    engine->Stop();
    EXPECT_EQ(engine->Stats().requests_finished, 12);
  }
}

TEST_F(ReplicasTest, CancelsOneChoiceOrAll) {
  const auto replicas = Make({-1, -1});
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 4; ++i) {
    Request request = SimpleRequest(CountingPrompt(5 + i, i), 60);
    request.num_choices = 2;
    ids.push_back(replicas->Submit(request).value());
  }
  replicas->Cancel(ids[0], 1);
  replicas->Cancel(ids[3]);
  replicas->Cancel(9999);
  replicas->Start();
  const Outputs outputs = Read(*replicas, 8);
  for (const auto& [choice, output] : outputs) {
    const bool cancelled = choice.first == ids[3] || choice == std::pair(ids[0], 1);
    EXPECT_EQ(output.finish, cancelled ? FinishReason::kCancelled : FinishReason::kLength);
  }
}

TEST_F(ReplicasTest, AFullReplicaPassesRequestsOnAndOnlyTheLastRefuses) {
  EngineOptions options = SmallOptions();
  options.max_queue_size = 2;
  const auto replicas = Make({-1, -1}, options);
  EXPECT_EQ(replicas->limits().max_queue_size, 4);
  // One long prompt is as much to do as many short ones, but the queues count requests.
  ASSERT_TRUE(replicas->Submit(SimpleRequest(CountingPrompt(200, 0), 5)).ok());
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(replicas->Submit(SimpleRequest(CountingPrompt(5, i), 5)).ok());
  }
  const Result<RequestId> refused = replicas->Submit(SimpleRequest(CountingPrompt(5, 9), 5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("Maximum queue size of 2"));
  EXPECT_EQ(replicas->Submit(SimpleRequest({}, 5)).status().code(), Code::kInvalidArgument);
  replicas->Start();
  EXPECT_EQ(Read(*replicas, 4).size(), 4u);
}

TEST_F(ReplicasTest, AReplicaThatFailsEndsItsRequestsAndTheOthersGoOn) {
  const auto replicas = Make({-1, 10});
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 8; ++i) {
    ids.push_back(replicas->Submit(SimpleRequest(CountingPrompt(5, i), 60)).value());
  }
  replicas->Start();
  const Outputs outputs = Read(*replicas, ids.size());
  std::multiset<FinishReason> ends;
  for (const auto& [choice, output] : outputs) {
    ends.insert(output.finish);
    if (output.finish == FinishReason::kFailed) {
      EXPECT_EQ(output.error.code(), Code::kUnavailable);
      EXPECT_THAT(output.error.message(), HasSubstr("the device is lost"));
    }
  }
  EXPECT_EQ(ends.count(FinishReason::kFailed), 4u);
  EXPECT_EQ(ends.count(FinishReason::kLength), 4u);
  engines_[1]->Stop();  // its figures are complete
  const Status failure = replicas->Stats().failure;
  EXPECT_EQ(failure.code(), Code::kUnavailable);
  EXPECT_THAT(failure.message(), HasSubstr("replica 1"));
  // It has nothing to do, so it would be chosen.
  for (int32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(Ask(*replicas, SimpleRequest(CountingPrompt(5, i), 6)).finish, FinishReason::kLength);
  }
}

TEST_F(ReplicasTest, WhenAllHaveFailedRequestsAreRefusedAsByOneEngine) {
  const auto replicas = Make({3, 5});
  for (int32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(replicas->Submit(SimpleRequest(CountingPrompt(5, i), 60)).ok());
  }
  replicas->Start();
  for (const auto& [choice, output] : Read(*replicas, 4)) {
    EXPECT_EQ(output.finish, FinishReason::kFailed);
  }
  EXPECT_EQ(replicas->Submit(SimpleRequest({1, 2}, 5)).status().code(), Code::kUnavailable);
  for (Engine* engine : engines_) engine->Stop();
  EXPECT_THAT(replicas->Stats().failure.message(), HasSubstr("replica 0"));
}

TEST_F(ReplicasTest, EndsItsOpenRequestsWhenTheEnginesStop) {
  const auto replicas = Make({-1, -1});
  replicas->Start();
  for (int32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(replicas->Submit(SimpleRequest(CountingPrompt(5, i), 240)).ok());
  }
  for (Engine* engine : engines_) engine->Stop();
  for (const auto& [choice, output] : Read(*replicas, 4)) {
    EXPECT_NE(output.finish, FinishReason::kNone);
  }
  EXPECT_EQ(replicas->Submit(SimpleRequest({1, 2}, 5)).status().code(), Code::kUnavailable);
}

// Replicas of one model on backends of their own, which share its weights.
class CreatedReplicasTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = MakeTinyLlama(TinyLlamaSpec(DType::kF32, 256), 5, 0.0f, *backends_[0]);
    options_.max_seq_len = 128;
    options_.block_tokens = 8;
    options_.kv_event_buffer = 64;
    options_.kv_cache_bytes = 1 << 20;
    options_.draft_mode = DraftMode::kOff;
  }

  Result<std::unique_ptr<Replicas>> Make(size_t size) {
    std::vector<ReplicaPlace> places(size);
    for (size_t i = 0; i < size; ++i) {
      places[i].ranks.push_back(
          {.backend = backends_[i].get(), .ranks = {}, .target = model_, .draft = {}});
    }
    return Replicas::Create(options_, places, clock_);
  }

  static std::unique_ptr<ops::Backend> MakeBackend() {
    return ops::MakeCpuBackend({.num_threads = 1}).value();
  }

  SteadyClock clock_;
  std::vector<std::unique_ptr<ops::Backend>> backends_{2};
  EngineModel model_;
  EngineOptions options_;

  CreatedReplicasTest() {
    for (auto& backend : backends_) backend = MakeBackend();
  }
};

TEST_F(CreatedReplicasTest, CountsTheWeightsThatTheyShareOnce) {
  const MemoryUse one = (*Make(1).value()).Stats().memory;
  const auto two = Make(2).value();
  EXPECT_EQ(two->Stats().memory.cpu, 2 * one.cpu - model_.weights->bytes);
  const MemoryLine& weights = two->memory_plan().front();
  EXPECT_EQ(weights.bytes, model_.weights->bytes);
  EXPECT_EQ(weights.note, "once for all 2 replicas");
  EXPECT_EQ(two->memory_plan().back().note, "of each of 2 replicas");
  EXPECT_EQ(two->Stats().kv.total_blocks, 2 * Make(1).value()->Stats().kv.total_blocks);
}

TEST_F(CreatedReplicasTest, DividesTheFreeMemoryWhenTheCacheIsPlannedFromIt) {
  options_.kv_cache_bytes = 0;
  options_.kv_cache_free_fraction = 0.9;
  options_.max_batch_size = 4;
  const auto two = Make(2);
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ((*two)->options().max_seq_len, 128);
}

TEST_F(CreatedReplicasTest, TellsTheCacheEventsOfItsReplicasApart) {
  for (const size_t size : {1, 2}) {
    const auto replicas = Make(size).value();
    replicas->Start();
    for (int32_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(replicas->Submit(SimpleRequest(CountingPrompt(24, i), 2)).ok());
    }
    Event event;
    for (int ended = 0; ended < 2; ended += event.finish != FinishReason::kNone) {
      ASSERT_TRUE(replicas->PopEvent(event, std::chrono::seconds(30)));
    }
    std::map<int32_t, std::vector<uint64_t>> ids;
    for (KvEventBatch batch; ids.empty() || !batch.events.empty();) {
      batch = replicas->TakeKvEvents(3).value();
      EXPECT_LE(batch.events.size(), 3u);
      for (const KvEvent& one : batch.events) ids[one.replica].push_back(one.id);
    }
    if (size == 1) {
      EXPECT_EQ(ids[-1].size(), 7u);
      continue;
    }
    for (const int32_t replica : {0, 1}) {
      EXPECT_EQ(ids[replica], (std::vector<uint64_t>{0, 1, 2, 3})) << replica;
    }
  }
}

TEST(TotalOf, SumsCountersAndKeepsTheOldestProgressAndTheFirstFailure) {
  std::vector<EngineStats> stats(3);
  for (size_t i = 0; i < stats.size(); ++i) {
    const auto n = static_cast<int32_t>(i) + 1;
    stats[i].running = n;
    stats[i].bounds = {.sequences = 10 * n, .tokens = 100 * n};
    stats[i].kv.total_blocks = 7 * n;
    stats[i].kv.block_tokens = 32;
    stats[i].memory.gpu = n;
    stats[i].output_tokens = 1000 * n;
    stats[i].decode_host.Add(0.001);
    stats[i].seconds_since_progress = i == 1 ? 5.0 : 1.0;
    if (i > 0) stats[i].failure = Unavailable("lost");
  }
  const EngineStats total = TotalOf(stats);
  EXPECT_EQ(total.running, 6);
  EXPECT_EQ(total.bounds, (StepBounds{.sequences = 60, .tokens = 600}));
  EXPECT_EQ(total.kv.total_blocks, 42);
  EXPECT_EQ(total.kv.block_tokens, 32);
  EXPECT_EQ(total.memory.gpu, 6);
  EXPECT_EQ(total.output_tokens, 6000);
  EXPECT_EQ(total.decode_host.count(), 3);
  EXPECT_EQ(total.seconds_since_progress, 5.0);
  EXPECT_EQ(total.failure.message(), "replica 1: lost");
  ASSERT_EQ(total.replicas.size(), 3u);
  EXPECT_EQ(total.replicas[2].running, 3);
}

}  // namespace
}  // namespace tandem
