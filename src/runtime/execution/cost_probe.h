// MeasureCosts: measures at start the time of a pass of each model by its number of rows: forward
// pass and greedy draws together, as a step runs them (as one graph, if the backend records them).
// Overwrites the pools' first blocks; no sequence may run.
#pragma once

#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "ops/backend.h"
#include "runtime/execution/executor_config.h"
#include "runtime/execution/forward_pass.h"
#include "runtime/speculation/cost_table.h"

namespace tandem {

struct CostSubject {
  ModelIndex model = ModelIndex::kTarget;
  ForwardPass* pass = nullptr;
  const ops::KvPool* pool = nullptr;
  int32_t max_rows = 0;
  int32_t max_logits_rows = 0;
};

// Sets the models' points in `costs`, up to max_rows; fewer if the measurement takes too long (the
// table is extrapolated linearly). All models are measured in turn, several times, so that a
// temporary disturbance of the machine does not make one model look more expensive than the others.
// RESOURCE_EXHAUSTED when the backend has no memory for the rows; UNAVAILABLE when it has failed.
Status MeasureCosts(std::span<const CostSubject> subjects, ops::Backend& backend,
                    const Clock& clock, CostTable& costs);

}  // namespace tandem
