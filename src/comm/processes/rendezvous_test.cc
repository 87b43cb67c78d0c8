#include "comm/processes/rendezvous.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "comm/testing/join_in_threads.h"

namespace tandem {
namespace {

constexpr Nanos kShort = std::chrono::milliseconds(300);
constexpr Nanos kLong = std::chrono::seconds(60);

RankWorld WorldOf(int rank, const std::string& address) {
  RankWorld world;
  world.rank = rank;
  world.size = 2;
  world.address = address;
  world.version = "1";
  return world;
}

RankMessage MessageOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A port that was free a moment ago: rank 0 must be told one, since all others are.
std::string FreeAddress() {
  const auto listener = Listener::Bind("127.0.0.1:0");
  EXPECT_TRUE(listener.ok());
  return "127.0.0.1:" + listener->port();
}

TEST(RendezvousTest, LinksCarryMessagesBothWaysAndRanksKnowWhoSharesTheirCores) {
  for (const std::string& address : {NewRankAddress(), FreeAddress()}) {
    SCOPED_TRACE(address);
    auto joined = JoinInThreads(3, {}, address);
    ASSERT_EQ(joined[0].links.size(), 2u);
    for (int rank = 1; rank < 3; ++rank) {
      RankLink& down = *joined[0].links[static_cast<size_t>(rank - 1)];
      RankLink& up = *joined[static_cast<size_t>(rank)].links.front();
      EXPECT_EQ(down.peer(), rank);
      EXPECT_EQ(up.peer(), 0);
      RankMessage message;
      ASSERT_TRUE(down.Send(MessageOf("a step")).ok());
      ASSERT_TRUE(up.Receive(message).ok());
      EXPECT_EQ(message, MessageOf("a step"));
      ASSERT_TRUE(up.Send({}).ok());
      ASSERT_TRUE(down.Receive(message).ok());
      EXPECT_TRUE(message.empty());
    }
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(joined[static_cast<size_t>(rank)].on_machine, 3);
      EXPECT_EQ(joined[static_cast<size_t>(rank)].num_on_cores, 3);
      EXPECT_EQ(joined[static_cast<size_t>(rank)].index_on_cores, rank);
    }
  }
}

TEST(RendezvousTest, OfProcessesThatShareGpusTheFirstHasTheRanks) {
  auto joined = JoinInThreads(5, {}, NewRankAddress(), {"a,b", "a,b", "c,d", "a,b", "c,d"});
  ASSERT_EQ(joined[0].links.size(), 4u);
  for (const JoinedRanks& one : joined) EXPECT_EQ(one.with_ranks, (std::vector{0, 2}));
  for (const size_t waiting : {1, 3, 4}) EXPECT_EQ(joined[waiting].ranks, nullptr);
  ASSERT_EQ(joined[0].ranks->size(), 2);
  ASSERT_EQ(joined[2].ranks->rank(), 1);
  std::thread other([&] {
    std::array<std::byte, 1> received{};
    joined[2].ranks->Broadcast(received);
    EXPECT_EQ(received[0], std::byte{7});
  });
  std::array<std::byte, 1> sent = {std::byte{7}};
  joined[0].ranks->Broadcast(sent);
  other.join();
  // Those that only wait are not missed.
  joined[1].links.clear();
  EXPECT_TRUE(joined[0].ranks->status().ok());
}

TEST(RendezvousTest, StagesAreThoseOfTheProcessesWhereTheyDivideThem) {
  const auto stages_of = [](int stages) {
    auto joined = JoinInThreads(2, {.count = stages}, NewRankAddress(), {"a", "b"});
    return joined[1].ranks->stage().size();
  };
  EXPECT_EQ(stages_of(1), 2);
  EXPECT_EQ(stages_of(2), 1);
  EXPECT_EQ(stages_of(4), 2);
}

TEST(RendezvousTest, ALinkWhoseOtherSideHasGoneNamesIt) {
  auto joined = JoinInThreads(2);
  joined[1].links.clear();
  RankMessage message;
  const Status left = joined[0].links.front()->Receive(message);
  EXPECT_EQ(left.code(), Code::kUnavailable);
  EXPECT_EQ(left.message(), "rank 1 has left");
}

TEST(RendezvousTest, AnAddressIsFreeAgainWhenTheRanksHaveEnded) {
  for (const std::string& address : {NewRankAddress(), FreeAddress()}) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(JoinInThreads(2, {}, address).size(), 2u);
  }
}

TEST(RendezvousTest, WhoDidNotComeIsNamed) {
  const auto leader = JoinRanks(WorldOf(0, NewRankAddress()), kShort);
  EXPECT_EQ(leader.status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(leader.status().message(), "rank 1 did not come");
  const auto other = JoinRanks(WorldOf(1, NewRankAddress()), kShort);
  EXPECT_EQ(other.status().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(other.status().message().starts_with("rank 0 did not come"))
      << other.status().message();
}

TEST(RendezvousTest, WhatIsNoRankOfTheModelIsSentAway) {
  const std::string address = NewRankAddress();
  Result<JoinedRanks> leader = Internal("not run");
  std::thread thread([&] { leader = JoinRanks(WorldOf(0, address), kLong); });
  const auto connect = [&address] {
    for (;;) {
      if (auto socket = ConnectTo(address); socket.ok()) return std::move(*socket);
      std::this_thread::yield();
    }
  };
  {
    const Socket silent = connect();
    const std::string request = "GET / HTTP/1.1\r\nHost: tandem\r\n\r\n";
    EXPECT_TRUE(SendAll(silent, std::as_bytes(std::span(request))).ok());
  }
  RankWorld stranger = WorldOf(1, address);
  stranger.secret = "guessed";
  const auto refused = JoinRanks(stranger, kLong);
  EXPECT_EQ(refused.status().message(),
            "rank 0: its secret is another one: give both the same --rank_secret_file");
  const auto second = WorldOf(0, address);
  EXPECT_EQ(JoinRanks(second, kShort).status().code(), Code::kFailedPrecondition);  // taken
  const auto other = JoinRanks(WorldOf(1, address), kLong);
  EXPECT_TRUE(other.ok()) << other.status().message();
  thread.join();
  EXPECT_TRUE(leader.ok()) << leader.status().message();
}

TEST(RendezvousTest, ARankThatIsStartedAgainWhileOthersAreAwaitedIsTaken) {
  const std::string address = NewRankAddress();
  const auto world = [&address](int rank) {
    RankWorld one = WorldOf(rank, address);
    one.size = 3;
    return one;
  };
  std::vector<std::thread> threads;
  std::array<JoinedRanks, 3> ranks;  // none leaves before all are there
  const auto join = [&](int rank) {
    threads.emplace_back([&world, &ranks, rank] {
      auto joined = JoinRanks(world(rank), kLong);
      EXPECT_TRUE(joined.ok()) << joined.status().message();
      if (joined.ok()) ranks[static_cast<size_t>(rank)] = *std::move(joined);
    });
  };
  join(0);
  const auto gone = JoinRanks(world(1), kShort);
  EXPECT_EQ(gone.status().code(), Code::kDeadlineExceeded);
  join(1);
  join(2);
  for (std::thread& thread : threads) thread.join();
}

TEST(RendezvousTest, ProgramsOfOtherVersionsAreNotRanksOfOneModel) {
  const std::string address = NewRankAddress();
  Result<JoinedRanks> leader = Internal("not run");
  std::thread thread([&] { leader = JoinRanks(WorldOf(0, address), kLong); });
  RankWorld old = WorldOf(1, address);
  old.version = "0";
  const auto refused = JoinRanks(old, kLong);
  thread.join();
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(leader.status().message(),
            "rank 1 is one of 2 in version 0, rank 0 is one of 2 in version 1");
}

TEST(RendezvousTest, WhatIsNoAddressIsRefused) {
  for (const char* address :
       {"", "host", "host:", ":7", "127.0.0.1:port", "127.0.0.1:99999", "unix:"}) {
    EXPECT_EQ(JoinRanks(WorldOf(0, address), kShort).status().code(), Code::kInvalidArgument)
        << address;
    EXPECT_EQ(JoinRanks(WorldOf(1, address), kShort).status().code(), Code::kInvalidArgument)
        << address;
  }
}

}  // namespace
}  // namespace tandem
