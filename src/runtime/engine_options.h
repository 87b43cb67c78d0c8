// EngineOptions: the settings an engine is made with. A plain value; option_rows.h has the rows of
// the option table that fill it in.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "runtime/scheduling/scheduler.h"
#include "runtime/speculation/draft_mode.h"
#include "tensor/dtype.h"

namespace tandem {

// Who reads the state of running sequences within a step.
enum class ExecutorKind : uint8_t {
  kAuto,    // the host if the backend is the CPU, else the device alone
  kHost,    // the host reads the rows before each pass: the CPU backend only
  kDevice,  // the device alone, on any backend: the host knows upper bounds (tests)
};

struct EngineOptions {
  int32_t max_batch_size = 64;    // sequences per step, and slots
  int32_t max_num_tokens = 2048;  // target rows per step (prefill chunks + decodes + drafts)
  int32_t max_seq_len = 0;        // prompt + output; 0: the limit of model and cache
  int32_t max_input_len = 0;      // prompt; 0: as max_seq_len
  int32_t max_queue_size = 256;   // requests waiting (n counts n); beyond: RESOURCE_EXHAUSTED
  Nanos max_queue_wait{0};        // a longer wait ends a request the same way; 0: no limit
  // Logits that one request gets and sends; a larger one is refused. Open requests may together
  // have four times as much, including what waits to be read: then RESOURCE_EXHAUSTED. 0: no
  // logits.
  int64_t max_logits_bytes = int64_t{256} << 20;
  int64_t kv_cache_bytes = 0;           // both models' pools; 0: planned from free memory
  double kv_cache_free_fraction = 0.5;  // of the memory free after loading, when planned
  int64_t kv_cache_tokens = 0;          // most tokens that a pool holds; 0: as many as fit
  std::optional<DType> kv_cache_dtype;  // of both models' pools; default: the models' own types
  // Host memory for evicted blocks of both models; 0: they are lost.
  int64_t kv_host_cache_bytes = 0;
  bool kv_onboard_blocks = true;         // false: nothing is brought back, so nothing is offloaded
  int32_t kv_offload_min_priority = 30;  // of 0 to 100; blocks have kBlockPriority
  int32_t kv_event_buffer = 0;           // events of the cache kept until they are read; 0: none
  int32_t block_tokens = 32;
  bool enable_prefix_reuse = true;
  bool enable_chunked_prefill = true;
  // Bounds below the two limits that follow the lengths of recent sequences (StepTuner).
  bool enable_batch_size_tuning = false;
  bool enable_max_num_tokens_tuning = false;  // without effect where prompts are not split
  SchedulerPolicy policy = SchedulerPolicy::kMaxUtilization;
  int32_t steps_in_flight = 0;  // 0 or 1
  DraftMode draft_mode = DraftMode::kAdaptive;
  int32_t fixed_draft_len = 4;
  int32_t max_draft_len = 8;
  int32_t lookup_ngram =
      0;  // > 0: n-gram lookup drafts from the sequence's own history, tried first
  bool draft_forced = false;      // tokens that a constraint forces, before the draft model
  bool ratio_acceptance = false;  // ratio rule (use_logits) instead of token match
  ExecutorKind executor = ExecutorKind::kAuto;
  uint64_t seed = 0;  // 0: from the system; the source of seeds for requests without one
};

}  // namespace tandem
