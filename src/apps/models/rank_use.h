// What lies on the device of each rank, for people. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory_planner.h"

namespace tandem::apps {

struct RankUse {
  std::string device;  // "cpu", "cuda:1"
  // In bytes, of one rank of one replica.
  int64_t weights = 0;
  int64_t cache = 0;
  int64_t workspace = 0;  // of the passes, and for sampling
  int64_t free = 0;       // before anything is loaded; of a CPU its share
};

// The cache and the workspace of a plan, for a rank with these weights.
RankUse MemoryOfRank(const MemoryPlan& plan, std::string device, int64_t weights, int64_t free);

// A table with a title, a row for each rank.
std::vector<std::string> ShowRanks(std::span<const RankUse> ranks);

}  // namespace tandem::apps
