// PlanEngine: the effective options and memory use of an engine on a backend. Nothing is loaded or
// allocated: Engine::Create plans this way before it makes anything, and `tandem plan` does only
// this.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "ops/backend.h"
#include "runtime/engine_options.h"
#include "runtime/execution/executor_config.h"
#include "runtime/memory_planner.h"
#include "runtime/scheduling/scheduler.h"

namespace tandem {

struct EnginePlan {
  EngineOptions options;  // effective: every value is planned
  SchedulerLimits limits;
  MemoryPlan memory;
  std::array<RowForm, kNumModels> row_forms = {};  // of the models' passes
  RankPlace place;                                 // of the part of the target
};

// The models by spec, bytes of weights and positions; their workspaces are computed here. A draft
// without a spec means no draft. `free_bytes`: free memory once the weights are loaded. Errors are
// those of Engine::Create. A pure function; any thread.
Result<EnginePlan> PlanEngine(const EngineOptions& asked, ModelMemory target, ModelMemory draft,
                              const ops::Backend& backend, int64_t free_bytes,
                              const FewestBlocks& fewest = {});

// What PlanEngine needs of one rank of an engine.
struct RankMemory {
  ModelMemory target;  // its parts
  ModelMemory draft;
  const ops::Backend* backend = nullptr;
  int64_t free_bytes = 0;
};
// The plans of all ranks. They have equally many blocks, because a block's id is the same on all:
// as many as fit on each. Bytes may differ from rank to rank.
// `most`: of the blocks, where ranks elsewhere have fewer.
Result<std::vector<EnginePlan>> PlanRanks(const EngineOptions& asked,
                                          std::span<const RankMemory> ranks,
                                          const FewestBlocks& most = {});
// The lines of all of them, noted with the ranks that they are of; what takes as much everywhere
// has one line.
std::vector<MemoryLine> MemoryLinesOf(std::span<const EnginePlan> plans);

// Whether the executor leaves its state to the backend until a step's results arrive, as on a GPU;
// else the host reads the state in between.
bool OnDevice(const EngineOptions& options, const ops::Backend& backend);

// Whether it drafts for sequences with a TokenConstraint. Under the ratio rule the drafts
// themselves must be drawn under masks, so the host would have to see each of them before the next.
bool DraftsConstrained(const EngineOptions& options, const ops::Backend& backend);

// What the scheduler keeps to, for effective options. draft_max_positions: of the draft model; 0
// without one.
SchedulerLimits MakeSchedulerLimits(const EngineOptions& options, int32_t draft_max_positions,
                                    const ops::Backend& backend);

// The executor's configuration for effective options and their limits.
ExecutorConfig MakeExecutorConfig(const EngineOptions& options, const StepLimits& limits,
                                  const ops::Backend& backend);

}  // namespace tandem
