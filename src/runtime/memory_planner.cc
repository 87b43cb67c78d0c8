#include "runtime/memory_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/options.h"
#include "model/kv_pool.h"

namespace tandem {
namespace {

// Fewest blocks of the cache when max_seq_len is not given, unless the longest sequence has fewer.
constexpr int64_t kMinBlocks = 2;

int64_t BlockBytes(const ModelMemory& model, const EngineOptions& options, bool windowed) {
  if (model.spec == nullptr) return 0;
  const DType stored = KvTypeOf(options, *model.spec);
  return KvBytesPerToken(*model.spec, stored, windowed) * options.block_tokens;
}
int64_t BlockBytes(const ModelMemory& model, const EngineOptions& options) {
  return BlockBytes(model, options, false) + BlockBytes(model, options, true);
}

// What the blocks of both models take, of which there are equally many except in the target's
// windowed layers.
struct CacheSizes {
  int64_t target_block = 0;  // bytes, without the windowed layers
  int64_t draft_block = 0;
  int64_t window_block = 0;                                    // 0: no layer has blocks of its own
  int64_t most_windows = std::numeric_limits<int64_t>::max();  // blocks of those layers
  int64_t most_blocks = 0;                                     // that slots can fill

  int64_t TargetBytes(int64_t blocks) const {
    return blocks * target_block + std::min(blocks, most_windows) * window_block;
  }
  int64_t BlockBytes() const { return target_block + draft_block + window_block; }
  int64_t Bytes(int64_t blocks) const { return TargetBytes(blocks) + blocks * draft_block; }
  int64_t BlocksIn(int64_t bytes) const {
    const int64_t block = target_block + draft_block;
    if (BlockBytes() == 0) return std::numeric_limits<int64_t>::max();  // they are on other ranks
    const int64_t alike = bytes / (block + window_block);
    if (alike < most_windows) return alike;
    return block > 0 ? (bytes - most_windows * window_block) / block : std::max(alike, most_blocks);
  }
};

// Why a draft's keys and values are not kept as asked.
std::string DraftNote(const EngineOptions& options, const ModelMemory& draft) {
  if (draft.spec == nullptr || !options.kv_cache_dtype) return {};
  const DType kept = KvTypeOf(options, *draft.spec);
  if (kept == *options.kv_cache_dtype) return {};
  return fmt::format("in {}: the draft has no scales for {}", DTypeName(kept),
                     DTypeName(*options.kv_cache_dtype));
}

// The most blocks that the pools of both models may have; they have equally many.
int64_t MostBlocks(const ModelMemory& target, const ModelMemory& draft, int32_t block_tokens) {
  const int64_t most = MaxKvBlocks(*target.spec, block_tokens);
  return draft.spec == nullptr ? most : std::min(most, MaxKvBlocks(*draft.spec, block_tokens));
}

int64_t CeilDivide(int64_t value, int64_t by) { return (value + by - 1) / by; }

Result<int32_t> LongestSequence(const EngineOptions& options, const ModelMemory& target) {
  if (options.max_seq_len > target.max_positions) {
    return InvalidArgument(fmt::format("max_seq_len is {}; the model has {} positions",
                                       options.max_seq_len, target.max_positions));
  }
  const int64_t longest = options.max_seq_len > 0 ? options.max_seq_len : target.max_positions;
  return static_cast<int32_t>(std::min<int64_t>(longest, std::numeric_limits<int32_t>::max()));
}

// Blocks of the host, for those that are evicted.
Result<int32_t> HostBlocksIn(const EngineOptions& options, const CacheSizes& sizes,
                             const MemoryPlan& plan, const FewestBlocks& fewest) {
  if (options.kv_host_cache_bytes == 0) return 0;
  if (plan.num_window_blocks > 0) {
    return Unimplemented(
        "kv_host_cache_bytes: the layers with a window of this model keep blocks of their own, "
        "which "
        "are not moved to host memory; leave the option out");
  }
  const int64_t blocks =
      sizes.BlockBytes() == 0 ? fewest.host : options.kv_host_cache_bytes / sizes.BlockBytes();
  if (blocks == 0) {
    return FailedPrecondition(
        fmt::format("kv_host_cache_bytes is {}; one block of {} tokens needs {}: raise it or lower "
                    "tokens_per_block",
                    FormatBytes(options.kv_host_cache_bytes), options.block_tokens,
                    FormatBytes(sizes.BlockBytes())));
  }
  // Ids of blocks and of what lies in them have 31 bits.
  const int64_t most = std::numeric_limits<int32_t>::max() - plan.num_blocks;
  return static_cast<int32_t>(std::min({blocks, most, fewest.host}));
}

std::vector<MemoryLine> Lines(const ModelMemory& target, const ModelMemory& draft,
                              int64_t sampling_bytes, int64_t target_kv, int64_t draft_kv,
                              const std::string& kv_note, const std::string& draft_note) {
  std::vector<MemoryLine> lines;
  const auto add = [&](std::string what, int64_t bytes, std::string option, std::string note = {}) {
    if (bytes > 0) lines.push_back({std::move(what), bytes, std::move(option), std::move(note)});
  };
  add("target weights", target.weight_bytes, "");
  add("draft weights", draft.weight_bytes, "no_draft");
  for (MemoryLine& line : lines) line.weights = true;
  add("target workspace", target.workspace_bytes, "max_num_tokens");
  add("draft workspace", draft.workspace_bytes, "max_num_tokens");
  add("sampling", sampling_bytes, "max_batch_size");
  add("target keys and values", target_kv, "kv_cache_bytes", kv_note);
  add("draft keys and values", draft_kv, "kv_cache_bytes",
      kv_note + (kv_note.empty() || draft_note.empty() ? "" : "; ") + draft_note);
  return lines;
}

void AddNote(const std::string& note, MemoryLine& line) {
  if (!line.note.empty()) line.note += ", ";
  line.note += note;
}

}  // namespace

DType KvTypeOf(const EngineOptions& options, const ModelSpec& spec) {
  const DType asked = options.kv_cache_dtype.value_or(spec.dtype);
  return CheckCacheScales(spec, asked).ok() ? asked : spec.dtype;
}

Result<MemoryPlan> PlanMemory(const EngineOptions& options, const ModelMemory& target,
                              const ModelMemory& draft, int64_t sampling_bytes, int64_t free_bytes,
                              int64_t window_blocks, const FewestBlocks& fewest) {
  MemoryPlan plan;
  TANDEM_ASSIGN_OR_RETURN(plan.max_seq_len, LongestSequence(options, target));
  const int64_t work_bytes = target.workspace_bytes + draft.workspace_bytes + sampling_bytes;
  const int64_t sequence_blocks = CeilDivide(plan.max_seq_len, options.block_tokens);
  CacheSizes sizes = {.target_block = BlockBytes(target, options),
                      .draft_block = BlockBytes(draft, options),
                      .most_blocks = sequence_blocks * options.max_batch_size};
  if (window_blocks > 0) {
    sizes.target_block = BlockBytes(target, options, false);
    sizes.window_block = BlockBytes(target, options, true);
    sizes.most_windows = window_blocks;
  }

  int64_t kv_bytes = options.kv_cache_bytes;
  if (kv_bytes == 0) {
    const auto share = static_cast<double>(std::max<int64_t>(free_bytes - work_bytes, 0));
    kv_bytes = std::min(static_cast<int64_t>(share * options.kv_cache_free_fraction),
                        sizes.Bytes(sizes.most_blocks));
  }
  const int64_t token_blocks = CeilDivide(options.kv_cache_tokens, options.block_tokens);
  int64_t asked_blocks = sizes.BlocksIn(kv_bytes);
  const bool limited_by_tokens = token_blocks > 0 && token_blocks < asked_blocks;
  if (limited_by_tokens) {
    asked_blocks = token_blocks;
    kv_bytes = sizes.Bytes(token_blocks);
  }
  const int64_t limit = MostBlocks(target, draft, options.block_tokens);
  int64_t blocks = std::min(asked_blocks, limit);
  // A requested max_seq_len has to fit; otherwise the cache limits it.
  const int64_t needed_blocks =
      options.max_seq_len > 0 ? sequence_blocks : std::min(kMinBlocks, sequence_blocks);
  if (limit < needed_blocks) {
    return FailedPrecondition(fmt::format(
        "the key-value cache of this model holds at most {} tokens, whatever memory there is; one "
        "sequence needs {}: lower max_seq_len",
        limit * options.block_tokens, needed_blocks * options.block_tokens));
  }
  if (blocks < needed_blocks) {
    return FailedPrecondition(fmt::format(
        "the key-value cache has {}; one sequence of {} tokens needs {}: raise {} or lower "
        "max_seq_len ({} are free, workspaces take {} of them)",
        FormatBytes(kv_bytes), needed_blocks * options.block_tokens,
        FormatBytes(sizes.Bytes(needed_blocks)),
        limited_by_tokens ? "max_tokens_in_paged_kv_cache" : "kv_cache_bytes",
        FormatBytes(free_bytes), FormatBytes(work_bytes)));
  }
  // What was asked for has to fit even where the cache takes less of it.
  if (kv_bytes + work_bytes > free_bytes) {
    return FailedPrecondition(fmt::format(
        "key-value cache and workspaces need {}, {} are free: lower kv_cache_bytes ({}) or "
        "max_num_tokens ({})",
        FormatBytes(kv_bytes + work_bytes), FormatBytes(free_bytes), FormatBytes(kv_bytes),
        options.max_num_tokens));
  }
  std::string note;
  if (asked_blocks > limit) {
    note = fmt::format("the cache of this model has at most {} blocks", limit);
  }
  if (blocks > fewest.device) {
    note = fmt::format("{} blocks, as on the rank with the fewest", fewest.device);
    blocks = fewest.device;
  }
  plan.num_blocks = static_cast<int32_t>(blocks);
  if (blocks > sizes.most_windows) {
    plan.num_window_blocks = static_cast<int32_t>(sizes.most_windows);
    plan.window_tokens = static_cast<int32_t>(LongestWindow(*target.spec));
  }
  plan.max_seq_len =
      static_cast<int32_t>(std::min<int64_t>(plan.max_seq_len, blocks * options.block_tokens));
  plan.kv_cache_bytes = sizes.Bytes(blocks);
  plan.block_bytes = sizes.BlockBytes();
  TANDEM_ASSIGN_OR_RETURN(plan.num_host_blocks, HostBlocksIn(options, sizes, plan, fewest));
  plan.lines = Lines(target, draft, sampling_bytes, sizes.TargetBytes(blocks),
                     blocks * sizes.draft_block, note, DraftNote(options, draft));
  if (plan.num_host_blocks > 0) {
    plan.lines.push_back({.what = "evicted keys and values (host)",
                          .bytes = plan.num_host_blocks * sizes.BlockBytes(),
                          .option = "kv_host_cache_bytes",
                          .note = "",
                          .pinned = true});
  }
  return plan;
}

void NoteReplicas(int64_t replicas, bool weights_shared, std::vector<MemoryLine>& lines) {
  if (replicas == 1) return;
  for (MemoryLine& line : lines) {
    const bool once = weights_shared && line.weights;
    AddNote(fmt::format("{} {} replicas", once ? "once for all" : "of each of", replicas), line);
  }
}

}  // namespace tandem
