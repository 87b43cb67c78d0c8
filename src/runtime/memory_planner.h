// MemoryPlanner: divides memory between weights, workspaces and the key-value pools of target and
// draft, in absolute bytes; each line names the option that changes it. A pure function of the free
// memory.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "runtime/engine_options.h"

namespace tandem {

// One line of the memory plan, printed at start.
struct MemoryLine {
  std::string what;  // "target weights"
  int64_t bytes = 0;
  std::string option;    // the option that changes it; empty when none does
  std::string note;      // why it is less than the option allows; empty: it is not
  bool pinned = false;   // host memory that a GPU copies from and to: none of the device's
  int64_t ranks = 1;     // that take this much each
  bool weights = false;  // of a model: replicas on a CPU have them in common
};

struct ModelMemory {
  const ModelSpec* spec = nullptr;  // null: no such model
  int64_t weight_bytes = 0;         // already taken
  int64_t workspace_bytes = 0;      // of the decoder, yet to be taken; PlanEngine fills it in
  int64_t max_positions = 0;        // length of the rotary tables
};

struct MemoryPlan {
  int32_t num_blocks = 0;
  // Blocks of the target's windowed layers, where those need fewer than num_blocks, and the tokens
  // that such a layer sees; 0: all layers have num_blocks.
  int32_t num_window_blocks = 0;
  int32_t window_tokens = 0;
  int32_t max_seq_len = 0;
  int64_t kv_cache_bytes = 0;   // of all blocks in both models
  int32_t num_host_blocks = 0;  // for what is evicted
  int64_t block_bytes = 0;      // of a block in both models, where all layers have the same ones
  std::vector<MemoryLine> lines;
};

// Type in which a model's keys and values are kept: as asked, but its own where int8 is asked for
// and it has no scales for that. Engines keep a target as asked or refuse; drafts are free.
DType KvTypeOf(const EngineOptions& options, const ModelSpec& spec);

// The fewest blocks of any rank of an engine, of which no other one has more.
struct FewestBlocks {
  int64_t device = std::numeric_limits<int64_t>::max();
  int64_t host = std::numeric_limits<int64_t>::max();
};

// `free_bytes`: free memory once the weights are loaded. `sampling_bytes`: the executor's arrays.
// window_blocks: the most that the target's windowed layers need at once, all slots together
// (StepLimits::MaxWindowBlocks). They have this many if that is fewer than the other layers have,
// so that only the others ever limit a sequence; 0: all layers have the same blocks. A draft keeps
// the keys and values of the whole context, because it may lag behind by any number of tokens.
// A pool never has more blocks than MaxKvBlocks, whatever memory there is. Blocks of the host, for
// evicted ones, are as many as EngineOptions::kv_host_cache_bytes holds; they take nothing of
// `free_bytes`.
// FAILED_PRECONDITION when it does not fit, with bytes needed and free and the option that helps.
Result<MemoryPlan> PlanMemory(const EngineOptions& options, const ModelMemory& target,
                              const ModelMemory& draft, int64_t sampling_bytes, int64_t free_bytes,
                              int64_t window_blocks = 0, const FewestBlocks& fewest = {});

// Says of every line that each of several replicas takes as much, or of the weights that they are
// there once for all of them; nothing for one.
void NoteReplicas(int64_t replicas, bool weights_shared, std::vector<MemoryLine>& lines);

}  // namespace tandem
