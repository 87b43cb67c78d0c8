#include "runtime/routing/prefix_router.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace tandem {
namespace {

constexpr int32_t kBlock = 8;

Request Prompt(int32_t length, int32_t start = 0) {
  Request request;
  request.prompt.resize(static_cast<size_t>(length));
  std::iota(request.prompt.begin(), request.prompt.end(), start);
  return request;
}

TEST(ChooseReplica, TakesTheLeastLoadedWhenNothingIsCached) {
  EXPECT_EQ(ChooseReplica(std::vector<ReplicaState>{{.load = 9}, {.load = 7}, {.load = 8}}), 1u);
}

TEST(ChooseReplica, StaysWithTheCacheWhileItsReplicaIsNotMuchMoreLoaded) {
  const auto choose = [](int64_t load, int64_t cached) {
    return ChooseReplica(
        std::vector<ReplicaState>{{.load = load, .cached = cached}, {.load = 1000}});
  };
  EXPECT_EQ(choose(1000, 8), 0u);
  EXPECT_EQ(choose(1250, 8), 0u);  // a quarter more is no difference
  EXPECT_EQ(choose(1257, 8), 0u);  // and what is saved is worth as much load
  EXPECT_EQ(choose(1258, 8), 1u);
  EXPECT_EQ(choose(3000, 1700), 1u);
  EXPECT_EQ(choose(3000, 2000), 0u);
}

TEST(ChooseReplica, WeighsEachReplicasPartOfThePromptAgainstItsLoad) {
  // The longest part lies where most is to do, the middle one saves nearly as much.
  EXPECT_EQ(ChooseReplica(std::vector<ReplicaState>{
                {.load = 9000, .cached = 4000}, {.load = 5500, .cached = 3000}, {.load = 5000}}),
            1u);
}

TEST(ChooseReplica, TakesTheOneWithFewerSequencesAmongEquals) {
  const auto choose = [](int64_t load) {
    return ChooseReplica(std::vector<ReplicaState>{{.load = 1000, .sequences = 64},
                                                   {.load = load, .sequences = 63}});
  };
  EXPECT_EQ(choose(1250), 1u);
  EXPECT_EQ(choose(1251), 0u);
}

TEST(ChooseReplica, FillsTheEmptierCacheWhenLoadsAreEqual) {
  EXPECT_EQ(ChooseReplica(std::vector<ReplicaState>{{.known_blocks = 5}, {.known_blocks = 4}}), 1u);
  EXPECT_EQ(ChooseReplica(std::vector<ReplicaState>{{}, {}}), 0u);
}

TEST(ChooseReplica, LeavesOutThoseThatAreClosed) {
  EXPECT_EQ(ChooseReplica(std::vector<ReplicaState>{
                {.is_open = false, .cached = 100}, {.load = 50}, {.load = 40}}),
            2u);
  EXPECT_EQ(ChooseReplica(std::vector<ReplicaState>{{.is_open = false}}), std::nullopt);
}

TEST(SentPrefixes, ForgetsTheEndsOfThePromptsThatWereSentLongestAgo) {
  SentPrefixes sent(5);
  const PrefixHashes old = HashPrefixes(Prompt(24).prompt, "", kBlock);
  const PrefixHashes other = HashPrefixes(Prompt(31, 100).prompt, "", kBlock);
  ASSERT_EQ(old.size(), 3u);
  ASSERT_EQ(other.size(), 3u);  // full blocks alone
  sent.Add(old);
  EXPECT_EQ(sent.Match(old), 3);
  sent.Add(other);
  EXPECT_EQ(sent.size(), 5);
  EXPECT_EQ(sent.Match(old), 2);
  EXPECT_EQ(sent.Match(other), 3);
  sent.Add({old[0]});
  sent.Add(HashPrefixes(Prompt(16, 200).prompt, "", kBlock));
  EXPECT_EQ(sent.Match(old), 1);
  EXPECT_EQ(sent.Match(other), 2);
}

TEST(SentPrefixes, TellsKeysAndWhatComesBeforeABlockApart) {
  SentPrefixes sent(100);
  sent.Add(HashPrefixes(Prompt(16).prompt, "a", kBlock));
  EXPECT_EQ(sent.Match(HashPrefixes(Prompt(16).prompt, "a", kBlock)), 2);
  EXPECT_EQ(sent.Match(HashPrefixes(Prompt(16).prompt, "b", kBlock)), 0);
  EXPECT_EQ(sent.Match(HashPrefixes(Prompt(16).prompt, "", kBlock)), 0);
  EXPECT_EQ(sent.Match(HashPrefixes(Prompt(8, 8).prompt, "a", kBlock)), 0);
}

class PrefixRouterTest : public testing::Test {
 protected:
  // The replica that takes the request.
  size_t Send(RequestId id, const Request& request) {
    const PrefixHashes hashes = router_.HashesOf(request);
    const size_t replica = router_.Route(id, request, hashes, {false, false}).value();
    router_.Accept(replica, hashes);
    return replica;
  }
  void Note(RequestId id, size_t tokens, FinishReason finish = FinishReason::kNone) {
    Event event;
    event.request = id;
    event.tokens.resize(tokens);
    event.finish = finish;
    router_.Note(event);
  }

  PrefixRouter router_{2, kBlock, 100};
};

TEST_F(PrefixRouterTest, CountsTokensToComputeAndToHoldUntilTheLastChoiceHasEnded) {
  Request request = Prompt(20);
  request.num_choices = 2;
  ASSERT_EQ(Send(1, request), 0u);
  EXPECT_EQ(router_.LoadOf(0), 40);
  Note(1, 3);
  EXPECT_EQ(router_.LoadOf(0), 23);
  Note(1, 2, FinishReason::kEnd);
  EXPECT_EQ(router_.LoadOf(0), 25);
  EXPECT_EQ(router_.ReplicaOf(1), 0u);
  Note(1, 0, FinishReason::kCancelled);
  EXPECT_EQ(router_.LoadOf(0), 0);
  EXPECT_EQ(router_.ReplicaOf(1), std::nullopt);
  // What is cached there is not computed again.
  ASSERT_EQ(Send(2, request), 0u);
  EXPECT_EQ(router_.LoadOf(0), 20 + 4);
  Note(7, 5);  // of no request
  EXPECT_EQ(router_.LoadOf(0), 24);
}

TEST_F(PrefixRouterTest, KeepsConversationsWhereTheyBeganAndSpreadsNewOnes) {
  ASSERT_EQ(Send(1, Prompt(400)), 0u);
  ASSERT_EQ(Send(2, Prompt(400, 1000)), 1u);
  for (const RequestId id : {1, 2}) Note(id, 1, FinishReason::kEnd);
  for (RequestId turn = 3; turn < 9; ++turn) {
    const auto length = static_cast<int32_t>(400 + 20 * turn);
    ASSERT_EQ(Send(turn, Prompt(length)), 0u);
    ASSERT_EQ(Send(100 + turn, Prompt(length, 1000)), 1u);
    for (const RequestId id : {turn, 100 + turn}) Note(id, 5, FinishReason::kEnd);
  }
}

TEST_F(PrefixRouterTest, SpreadsAPromptThatAllSendAtOnce) {
  std::vector<int> sent(2);
  for (RequestId id = 1; id <= 100; ++id) ++sent[Send(id, Prompt(200))];
  EXPECT_NEAR(sent[0], sent[1], 10);
}

// As many clients as places, each with its next request when the one before has ended: no place
// stays empty beside a queue elsewhere.
TEST_F(PrefixRouterTest, KeepsAllBatchesFull) {
  constexpr int32_t kPlaces = 32, kPrompt = 16, kOutput = 256;
  std::map<RequestId, int32_t> left;  // tokens of output, of the open requests
  RequestId last = 0;
  const auto send = [&](int32_t age) {
    const RequestId id = ++last;
    Send(id, Prompt(kPrompt + age, static_cast<int32_t>(1000 * id)));
    left[id] = kOutput - age;
  };
  // At first they are of all ages.
  for (int32_t i = 0; i < 2 * kPlaces; ++i) send(i * kOutput / (2 * kPlaces));
  for (int32_t step = 0; step < 4 * kOutput; ++step) {
    std::vector<int32_t> running(2);
    for (const auto& [id, tokens] : left) ++running[router_.ReplicaOf(id).value()];
    ASSERT_EQ(running[0], kPlaces) << "step " << step;
    std::vector<RequestId> ended;
    for (auto& [id, tokens] : left) {
      if (--tokens == 0) ended.push_back(id);
      Note(id, 1, tokens == 0 ? FinishReason::kLength : FinishReason::kNone);
    }
    for (const RequestId id : ended) {
      left.erase(id);
      send(0);
    }
  }
}

TEST_F(PrefixRouterTest, GoesToTheOthersWhenOneHasRefused) {
  const Request request = Prompt(64);
  const PrefixHashes hashes = router_.HashesOf(request);
  ASSERT_EQ(Send(1, request), 0u);
  Note(1, 1, FinishReason::kEnd);
  ASSERT_EQ(router_.Route(2, request, hashes, {false, false}), 0u);
  router_.Refuse(2);
  EXPECT_EQ(router_.LoadOf(0), 0);
  ASSERT_EQ(router_.Route(2, request, hashes, {true, false}), 1u);
  EXPECT_EQ(router_.ReplicaOf(2), 1u);
  router_.Refuse(2);
  EXPECT_EQ(router_.Route(2, request, hashes, {true, true}), std::nullopt);
  EXPECT_EQ(router_.LoadOf(0) + router_.LoadOf(1), 0);
}

TEST_F(PrefixRouterTest, KnowsOfNoCacheForPromptsWhoseLogitsAreReadNorWithoutOne) {
  Request request = Prompt(64);
  request.num_prompt_logprobs = 0;
  EXPECT_TRUE(router_.HashesOf(request).empty());
  EXPECT_TRUE(PrefixRouter(2, kBlock, 0).HashesOf(Prompt(64)).empty());
}

}  // namespace
}  // namespace tandem
