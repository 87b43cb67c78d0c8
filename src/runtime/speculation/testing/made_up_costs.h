// Made-up prices for the tests of speculation.
#pragma once

#include <cstdint>

#include "runtime/speculation/cost_table.h"

namespace tandem {

// A memory-bound target: a second per pass and a hundredth per row. A draft takes a twentieth of
// it.
inline CostTable MemoryBoundCosts(double target_row = 0.01, double draft = 0.05,
                                  double draft_row = 0.0005) {
  CostTable costs;
  const CostTable::Point target_points[] = {{1, 1.0}, {1001, 1.0 + 1000 * target_row}};
  const CostTable::Point draft_points[] = {{1, draft}, {1001, draft + 1000 * draft_row}};
  costs.Set(ModelIndex::kTarget, target_points);
  costs.Set(ModelIndex::kDraft, draft_points);
  return costs;
}

}  // namespace tandem
