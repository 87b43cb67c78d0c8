// Rehearse: made-up steps that an executor runs before it serves. Whatever happens on first use
// (memory taken, products tuned, graphs recorded) happens there and not in a request's step; and
// passes get their prices as steps will have them: with draws, many sequences and a context, by the
// executor's own measurement.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "base/turns.h"
#include "ops/backend.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/executor_config.h"
#include "runtime/speculation/cost_table.h"

namespace tandem {

// What steps may use, besides the executor's own limits.
struct RehearsalScope {
  int32_t num_blocks = 0;         // of each pool
  int32_t num_window_blocks = 0;  // of the target's windowed groups; 0: there are none
  int64_t vocab = 0;
  bool draft_model = false;
  int32_t draft_max_positions = 0;
};

// Runs steps that only decode, of one sequence up to the executor's limits, and sets the models'
// prices in `costs`; fewer of them, and on a device fewer graphs, if that takes more than a few
// seconds. costs: null where nobody asks for prices. Overwrites the pools' first blocks; uses every
// slot and leaves them empty. No sequence may run. The error is the device's. `turn`: on the
// device, held by the caller; other engines get it between steps where they leave the measurements
// as they are: on the host. A device may still run their last step when they give the turn back, so
// there they get it between the steps that record graphs.
Status Rehearse(Executor& executor, const ExecutorConfig& config, const RehearsalScope& scope,
                const Clock& clock, const Turn& turn, CostTable* costs);

}  // namespace tandem
