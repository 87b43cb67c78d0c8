#include "runtime/execution/device_graphs.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem {

std::vector<int32_t> GraphSizes(int32_t max_rows) {
  // Close together where the rows' cost matters most compared to the weights': the matrix tiles
  // have 8, 16, 64 rows.
  std::vector<int32_t> buckets = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
  while (buckets.back() < max_rows) buckets.push_back(buckets.back() + 128);
  std::erase_if(buckets, [&](int32_t rows) { return rows >= max_rows; });
  buckets.push_back(max_rows);
  return buckets;
}

DeviceGraphs::DeviceGraphs(ops::Backend& backend, int32_t max_rows, std::function<void()> quiet)
    : backend_(backend), buckets_(GraphSizes(max_rows)), quiet_(std::move(quiet)) {
  for (std::vector<char>& ran : ran_once_) ran.resize(buckets_.size());
  for (auto& variants : parts_) {
    for (std::vector<Part>& parts : variants) parts.resize(buckets_.size());
  }
}

size_t DeviceGraphs::IndexOf(int32_t rows) const {
  const auto found = std::lower_bound(buckets_.begin(), buckets_.end(), rows);
  TANDEM_CHECK(found != buckets_.end(), "more rows than the plan's limit");
  return static_cast<size_t>(found - buckets_.begin());
}

}  // namespace tandem
