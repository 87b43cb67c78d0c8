// MeasureCosts: what a pass of each model costs by its number of rows, measured at start: forward
// pass and greedy draws together, as a step does them (as one graph, where the backend records
// them). Writes over the pools' first blocks; no sequence may run.
#pragma once

#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "ops/backend.h"
#include "runtime/execution/executor_config.h"
#include "runtime/execution/forward_pass.h"
#include "runtime/speculation/speculative.h"

namespace tandem {

struct CostSubject {
  ModelIndex model = ModelIndex::kTarget;
  ForwardPass* pass = nullptr;
  const ops::KvPool* pool = nullptr;
  int32_t max_rows = 0;
  int32_t max_logits_rows = 0;
};

// Sets the models' points in `costs`, up to max_rows; fewer where the measurement takes too long
// (the table goes on in a line). All models are measured in turn, several times over: what disturbs
// the machine for a while makes no model look dear beside another. RESOURCE_EXHAUSTED when the
// backend has no memory for the rows; UNAVAILABLE when it has failed.
Status MeasureCosts(std::span<const CostSubject> subjects, ops::Backend& backend,
                    const Clock& clock, CostTable& costs);

}  // namespace tandem
