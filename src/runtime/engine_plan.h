// PlanEngine: what an engine would be on a backend, and where its memory would go. Nothing is
// loaded or allocated: Engine::Create plans so before it makes anything, `tandem plan` does nothing
// else.
#pragma once

#include "ops/backend.h"
#include "runtime/engine_options.h"
#include "runtime/execution/executor_config.h"
#include "runtime/memory_planner.h"
#include "runtime/scheduling/scheduler.h"

namespace tandem {

struct EnginePlan {
  EngineOptions options;  // effective: nothing is left to be planned
  SchedulerLimits limits;
  MemoryPlan memory;
};

// The models by spec, bytes of weights and positions; their workspaces are found here. A draft
// without a spec is none. `free_bytes`: what is free with the weights loaded. Errors are those of
// Engine::Create. A pure function; any thread.
Result<EnginePlan> PlanEngine(const EngineOptions& asked, ModelMemory target, ModelMemory draft,
                              const ops::Backend& backend, int64_t free_bytes);

// Whether the executor leaves its state to the backend from a step's launch to its landing, as on a
// GPU; else it reads the state in between.
bool OnDevice(const EngineOptions& options, const ops::Backend& backend);

// Whether it drafts for sequences with a TokenConstraint. By the ratio rule the drafts themselves
// have to be drawn under masks, for which the host would have to see each of them before the next.
bool DraftsConstrained(const EngineOptions& options, const ops::Backend& backend);

// What an executor has to know of effective options and their limits.
ExecutorConfig MakeExecutorConfig(const EngineOptions& options, const SchedulerLimits& limits,
                                  const ops::Backend& backend);

}  // namespace tandem
