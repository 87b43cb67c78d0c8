// EngineParts: what an engine is put together from, once memory is planned and the models are
// loaded. Engine::Create makes them for real models; a test brings its own executor.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/engine.h"
#include "runtime/executor.h"
#include "runtime/executor_config.h"
#include "runtime/kv_cache.h"
#include "runtime/scheduler.h"
#include "runtime/speculative.h"

namespace tandem {

struct EngineParts {
  EngineOptions options;  // effective: nothing is left to be planned
  SchedulerLimits limits;
  KvCacheOptions kv;
  int64_t vocab_size = 0;
  bool has_draft = false;
  std::unique_ptr<CostTable> costs;  // the executor may hold a pointer to it
  std::unique_ptr<Executor> executor;
  std::vector<MemoryLine> memory_plan;
};

}  // namespace tandem
