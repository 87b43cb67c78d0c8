// The ranks of a model as processes would have them, for threads of a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/processes/rendezvous.h"

namespace tandem {

// A name that no other test has.
inline std::string NewRankAddress() {
  static std::atomic<int> next = 0;
  return "unix:tandem-test-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

inline std::vector<JoinedRanks> JoinInThreads(int size, const Stages& stages = {},
                                              const std::string& address = NewRankAddress(),
                                              const std::vector<std::string>& gpus = {}) {
  std::vector<JoinedRanks> joined(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RankWorld world;
      world.rank = rank;
      world.size = size;
      world.stages = stages;
      world.address = address;
      if (!gpus.empty()) world.gpus = gpus[static_cast<size_t>(rank)];
      auto one = JoinRanks(world, std::chrono::seconds(60));
      EXPECT_TRUE(one.ok()) << one.status().message();
      if (one.ok()) joined[static_cast<size_t>(rank)] = *std::move(one);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

}  // namespace tandem
