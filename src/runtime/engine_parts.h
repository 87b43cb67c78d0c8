// EngineParts: the parts of an engine, after memory is planned and the models are loaded.
// Engine::Create makes them for real models; a test brings its own executor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/heartbeat.h"
#include "base/turns.h"
#include "runtime/cache/kv_cache.h"
#include "runtime/engine_options.h"
#include "runtime/engine_stats.h"
#include "runtime/event_queue.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/executor_config.h"
#include "runtime/memory_planner.h"
#include "runtime/request/prompt_layouts.h"
#include "runtime/scheduling/scheduler.h"
#include "runtime/speculation/cost_table.h"

namespace tandem {

struct EngineParts {
  EngineOptions options;  // effective: every value is planned
  SchedulerLimits limits;
  KvCacheOptions kv;
  std::unique_ptr<KvEvents> kv_events;  // kv.events; null: nobody follows them
  int64_t vocab_size = 0;
  std::array<PromptRules, kNumModels> prompt_rules;
  CostTable costs;                       // measured at start, or empty
  std::unique_ptr<Heartbeat> heartbeat;  // the executor may hold a pointer; null: the loop's own
  std::unique_ptr<Executor> executor;
  std::shared_ptr<Turns> turns;  // of the device's engines; null: it has no other
  std::vector<MemoryLine> memory_plan;
  MemoryUse memory;
  std::shared_ptr<EventQueue> events;  // of an engine that is one of several; null: its own
};

}  // namespace tandem
