#include "apps/models/rank_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/options.h"

namespace tandem::apps {

RankUse MemoryOfRank(const MemoryPlan& plan, std::string device, int64_t weights, int64_t free) {
  RankUse memory = {.device = std::move(device), .weights = weights, .free = free};
  for (const MemoryLine& line : plan.lines) {
    if (line.weights || line.pinned) continue;
    const bool is_cache = line.what.ends_with("keys and values");
    (is_cache ? memory.cache : memory.workspace) += line.bytes;
  }
  return memory;
}

std::vector<std::string> ShowRanks(std::span<const RankUse> ranks) {
  size_t device = 6;
  for (const RankUse& rank : ranks) device = std::max(device, rank.device.size());
  const auto row = [&](const std::string& rank, const std::string& name, const std::string& weights,
                       const std::string& cache, const std::string& workspace,
                       const std::string& free) {
    return fmt::format("  {:4}  {:{}}  {:>10}  {:>10}  {:>10}  {:>10}", rank, name, device, weights,
                       cache, workspace, free);
  };
  std::vector<std::string> lines = {row("rank", "device", "weights", "cache", "workspace", "free")};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankUse& rank = ranks[i];
    lines.push_back(row(fmt::format("{}", i), rank.device, FormatBytes(rank.weights),
                        FormatBytes(rank.cache), FormatBytes(rank.workspace),
                        FormatBytes(rank.free)));
  }
  return lines;
}

}  // namespace tandem::apps
