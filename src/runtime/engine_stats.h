// EngineStats: an engine's figures, a plain value. The loop fills it; any thread may hold one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "runtime/cache/kv_cache.h"
#include "runtime/host_times.h"
#include "runtime/scheduling/step_tuner.h"

namespace tandem {

// The sequences and tokens of one step.
struct StepWork {
  int32_t context_requests = 0;     // sequences that compute more than one known token: prompts
  int32_t context_tokens = 0;       // of those sequences
  int32_t generation_requests = 0;  // sequences that compute their last token, and drafts
};

// Bytes that an engine holds, by the kind of memory.
struct MemoryUse {
  int64_t cpu = 0;
  int64_t gpu = 0;
  int64_t pinned = 0;  // the host's, which a GPU reads and writes directly

  MemoryUse& operator+=(const MemoryUse& other) {
    cpu += other.cpu;
    gpu += other.gpu;
    pinned += other.pinned;
    return *this;
  }
};

// What one of several replicas has to do.
struct ReplicaWork {
  int32_t running = 0;
  int32_t waiting = 0;
};

// A snapshot for metrics; totals since the start.
struct EngineStats {
  int32_t max_running = 0;  // sequences in the batch, at most
  StepBounds bounds;        // of a step, now
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t paused = 0;  // of the waiting: preempted, to start again
  StepWork step;       // of the newest step; zeros while there is nothing to do
  MemoryUse memory;
  KvCacheStats kv;
  int64_t steps = 0;
  // Steps without prompt tokens that follow another such step, and the engine thread's time in
  // them, excluding the wait for results. Steps that follow a prompt are left out, because the
  // thread may wait there for room in the device's queue.
  HostTimes decode_host;
  int64_t requests_finished = 0;
  int64_t requests_failed = 0;
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t draft_rounds = 0;
  int64_t drafts_proposed = 0;
  int64_t drafts_accepted = 0;
  // Time since the last turn of the loop or the last layer of a step; small while idle too.
  double seconds_since_progress = 0;
  // Why the engine has ended for good (its device is lost); ok while it runs.
  Status failure;
  std::vector<ReplicaWork> replicas;  // of the sums above; empty: of one engine alone
};

// The figures of several engines of the same models as those of one: sums, the oldest progress and
// the first failure, which names its engine by its place in the list. At least one engine.
EngineStats TotalOf(std::span<const EngineStats> replicas);

}  // namespace tandem
