// MeasureCosts: what a pass of a model costs by its number of rows, measured at start: forward pass
// and greedy draws together, as a step does them (as one graph, where the backend records them).
// Writes over the pool's first blocks; no sequence may run.
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ops/backend.h"
#include "runtime/executor_config.h"
#include "runtime/forward_pass.h"
#include "runtime/speculative.h"

namespace tandem {

// Up to `max_rows` rows; fewer where the measurement takes too long (the table goes on in a line).
// RESOURCE_EXHAUSTED when the backend has no memory for the rows.
Result<std::vector<CostTable::Point>> MeasureCosts(ForwardPass& pass, const ops::KvPool& pool,
                                                   ops::Backend& backend, int32_t max_rows,
                                                   int32_t max_logits_rows, const Clock& clock);

}  // namespace tandem
