#include "runtime/engine_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "model/decoder/decoder.h"
#include "model/kv_pool.h"
#include "model/prompt_rules.h"
#include "runtime/execution/device_memory.h"
#include "runtime/option_rows.h"

namespace tandem {
namespace {

// Number of sequences that may use the full draft length in one step; if more decode, they share
// it.
constexpr int32_t kFullDrafts = 16;

// Most drafts that a client may send with a request.
constexpr int32_t kMaxSentDrafts = 32;

// Rows of logits in a step beyond one for every slot, at least: a prompt whose logits go to the
// client takes this many tokens at a time.
constexpr int32_t kSpareLogits = kMaxSentDrafts;

bool UsesDraft(const EngineOptions& options, const ModelMemory& draft) {
  return draft.spec != nullptr && options.draft_mode != DraftMode::kOff;
}

// What no range of a single option says.
Status CheckOptions(const EngineOptions& options) {
  TANDEM_RETURN_IF_ERROR(EngineOptionRows().Check(options));
  if (options.max_seq_len == 1) {
    return InvalidArgument(
        "max_seq_len is 1; a sequence has at least 2 tokens, one of prompt and one of output");
  }
  if (options.draft_mode == DraftMode::kFixed && options.fixed_draft_len < 1) {
    return InvalidArgument(
        fmt::format("fixed_draft_len must be at least 1; it is {}", options.fixed_draft_len));
  }
  return {};
}

// A device's drafts are made before the host knows what a constraint forces, and by the ratio rule
// a draft needs a distribution.
bool DraftsForced(const EngineOptions& options, const ops::Backend& backend) {
  return options.draft_forced && !options.ratio_acceptance && !OnDevice(options, backend);
}

// Effects of options and models on each other: without a source of drafts there is no drafting, a
// step has a row for every sequence, a prompt whose tokens see each other is computed at once, and
// rows are only bounded where prompts may be split.
EngineOptions Effective(EngineOptions options, const ModelSpec& target, const ModelMemory& draft,
                        const ops::Backend& backend) {
  if (target.prefix.start_id >= 0) options.enable_chunked_prefill = false;
  options.draft_forced = DraftsForced(options, backend);
  if (!UsesDraft(options, draft) && options.lookup_ngram == 0 && !options.draft_forced) {
    options.draft_mode = DraftMode::kOff;
  }
  // What cannot come back need not be kept.
  const bool offloads = options.enable_prefix_reuse && options.kv_onboard_blocks &&
                        options.kv_offload_min_priority <= kBlockPriority;
  if (!offloads) options.kv_host_cache_bytes = 0;
  options.max_draft_len = std::max(
      options.max_draft_len, options.draft_mode == DraftMode::kFixed ? options.fixed_draft_len : 0);
  options.max_batch_size = std::min(options.max_batch_size, options.max_num_tokens);
  if (!options.enable_chunked_prefill) options.enable_max_num_tokens_tuning = false;
  return options;
}

}  // namespace

bool OnDevice(const EngineOptions& options, const ops::Backend& backend) {
  return options.executor == ExecutorKind::kDevice ||
         (options.executor == ExecutorKind::kAuto && backend.device().kind != Device::Kind::kCpu);
}

bool DraftsConstrained(const EngineOptions& options, const ops::Backend& backend) {
  return !options.ratio_acceptance || !OnDevice(options, backend);
}

SchedulerLimits MakeSchedulerLimits(const EngineOptions& options, int32_t draft_max_positions,
                                    const ops::Backend& backend) {
  SchedulerLimits limits;
  limits.max_batch_size = options.max_batch_size;
  limits.max_num_tokens = options.max_num_tokens;
  limits.max_draft_len = options.draft_mode == DraftMode::kOff ? 0 : options.max_draft_len;
  const int32_t full_drafts = std::min(options.max_batch_size, kFullDrafts);
  limits.max_logits_rows =
      options.max_batch_size + std::max(full_drafts * limits.max_draft_len, kSpareLogits);
  // A step that has a row for every slot has room for one request's.
  limits.max_sent_drafts =
      std::clamp(options.max_num_tokens - options.max_batch_size, 0, kMaxSentDrafts);
  limits.max_launched = options.steps_in_flight + 1;
  limits.chunked_prefill = options.enable_chunked_prefill;
  limits.prefix_reuse = options.enable_prefix_reuse;
  limits.policy = options.policy;
  limits.draft_mode = options.draft_mode;
  limits.fixed_draft_len = options.fixed_draft_len;
  limits.draft_model = draft_max_positions > 0;
  limits.draft_max_positions = draft_max_positions;
  limits.drafts_constrained = DraftsConstrained(options, backend);
  limits.drafts_unconstrained = limits.draft_model || options.lookup_ngram > 0;
  return limits;
}

ExecutorConfig MakeExecutorConfig(const EngineOptions& options, const StepLimits& limits,
                                  const ops::Backend& backend) {
  ExecutorConfig config{limits};
  config.max_seq_len = options.max_seq_len;
  config.block_tokens = options.block_tokens;
  config.lookup_ngram = options.lookup_ngram;
  config.draft_forced = DraftsForced(options, backend);
  config.ratio_acceptance = options.ratio_acceptance;
  config.takes_logits = options.max_logits_bytes > 0;
  config.on_host = !OnDevice(options, backend);
  return config;
}

Result<EnginePlan> PlanEngine(const EngineOptions& asked, ModelMemory target, ModelMemory draft,
                              const ops::Backend& backend, int64_t free_bytes,
                              const FewestBlocks& fewest) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(asked));
  if (asked.kv_cache_dtype) {
    TANDEM_RETURN_IF_ERROR(backend.CheckKvType(*asked.kv_cache_dtype));
    TANDEM_RETURN_IF_ERROR(CheckCacheScales(*target.spec, *asked.kv_cache_dtype));
  }
  EnginePlan plan;
  plan.place = target.spec->place;
  EngineOptions& options = plan.options;
  options = Effective(asked, *target.spec, draft, backend);
  if (!UsesDraft(options, draft)) draft = {};
  plan.limits = MakeSchedulerLimits(options, static_cast<int32_t>(draft.max_positions), backend);

  const int32_t rows = options.max_num_tokens;
  target.workspace_bytes = Decoder::WorkspaceBytes(*target.spec, rows, plan.limits.max_logits_rows);
  if (draft.spec != nullptr) {
    draft.workspace_bytes = Decoder::WorkspaceBytes(*draft.spec, rows, options.max_batch_size);
  }
  RowForm& target_rows = plan.row_forms[static_cast<size_t>(ModelIndex::kTarget)];
  target_rows = RowFormOf(*target.spec);
  const int64_t window_blocks =
      plan.limits.MaxWindowBlocks(LongestWindow(*target.spec), options.block_tokens);
  target_rows.windows = window_blocks > 0;
  if (draft.spec != nullptr) {
    plan.row_forms[static_cast<size_t>(ModelIndex::kDraft)] = RowFormOf(*draft.spec);
  }
  ExecutorConfig longest = MakeExecutorConfig(options, plan.limits, backend);
  longest.row_forms = plan.row_forms;
  if (longest.max_seq_len == 0) longest.max_seq_len = static_cast<int32_t>(target.max_positions);
  const int64_t draft_vocab = draft.spec != nullptr ? draft.spec->vocab_size : 0;
  const int64_t executor_bytes = DeviceMemory::Bytes(longest, target.spec->vocab_size, draft_vocab);
  if (backend.device().kind == Device::Kind::kCpu) {
    if (options.kv_host_cache_bytes > free_bytes) {
      return FailedPrecondition(fmt::format("kv_host_cache_bytes is {}; {} of memory are free",
                                            FormatBytes(options.kv_host_cache_bytes),
                                            FormatBytes(free_bytes)));
    }
    free_bytes -= options.kv_host_cache_bytes;
  }
  TANDEM_ASSIGN_OR_RETURN(plan.memory, PlanMemory(options, target, draft, executor_bytes,
                                                  free_bytes, window_blocks, fewest));
  target_rows.windows = plan.memory.num_window_blocks > 0;
  options.max_seq_len = plan.memory.max_seq_len;
  options.kv_cache_bytes = plan.memory.kv_cache_bytes;
  return plan;
}

Result<std::vector<EnginePlan>> PlanRanks(const EngineOptions& asked,
                                          std::span<const RankMemory> ranks,
                                          const FewestBlocks& most) {
  const auto plan_all = [&](const FewestBlocks& fewest) -> Result<std::vector<EnginePlan>> {
    std::vector<EnginePlan> plans;
    for (const RankMemory& rank : ranks) {
      TANDEM_ASSIGN_OR_RETURN(
          plans.emplace_back(),
          PlanEngine(asked, rank.target, rank.draft, *rank.backend, rank.free_bytes, fewest));
    }
    return plans;
  };
  TANDEM_ASSIGN_OR_RETURN(const std::vector<EnginePlan> alone, plan_all(most));
  FewestBlocks fewest = most;
  for (const EnginePlan& plan : alone) {
    fewest.device = std::min<int64_t>(fewest.device, plan.memory.num_blocks);
    fewest.host = std::min<int64_t>(fewest.host, plan.memory.num_host_blocks);
  }
  return plan_all(fewest);
}

namespace {

bool TakeTheSame(const EnginePlan& one, const EnginePlan& other) {
  return std::ranges::equal(one.memory.lines, other.memory.lines,
                            [](const MemoryLine& a, const MemoryLine& b) {
                              return a.what == b.what && a.bytes == b.bytes && a.note == b.note;
                            });
}

// Neighbouring ranks of a stage that take the same.
struct RankGroup {
  const EnginePlan* plan = nullptr;  // of each of them
  int64_t first = 0;                 // among the ranks of this process
  int64_t ranks = 0;

  bool Has(const EnginePlan& other) const {
    return plan->place.stage == other.place.stage && TakeTheSame(*plan, other);
  }
  const MemoryLine* Find(const std::string& what) const {
    const auto found = std::ranges::find(plan->memory.lines, what, &MemoryLine::what);
    return found == plan->memory.lines.end() ? nullptr : &*found;
  }
  // "stage 1 of 2", and "rank 2", "ranks 0 to 1" where ranks of a stage differ.
  std::string Name(bool by_rank) const {
    const RankPlace& place = plan->place;
    if (!by_rank) return fmt::format("stage {} of {}", place.stage + 1, place.stages);
    return ranks == 1 ? fmt::format("rank {}", first)
                      : fmt::format("ranks {} to {}", first, first + ranks - 1);
  }
};

}  // namespace

std::vector<MemoryLine> MemoryLinesOf(std::span<const EnginePlan> plans) {
  const RankPlace& split = plans.front().place;
  std::vector<RankGroup> groups;
  for (const EnginePlan& plan : plans) {
    if (groups.empty() || !groups.back().Has(plan)) {
      const int64_t first = groups.empty() ? 0 : groups.back().first + groups.back().ranks;
      groups.push_back({.plan = &plan, .first = first, .ranks = 0});
    }
    ++groups.back().ranks;
  }
  // Where the ranks of a stage are alike, some of them may be in other processes.
  const bool by_rank =
      std::ranges::adjacent_find(groups, [](const RankGroup& a, const RankGroup& b) {
        return a.plan->place.stage == b.plan->place.stage || !b.plan->place.has_layers();
      }) != groups.end();
  const bool has_all = by_rank || std::ssize(groups) == split.stages;
  const int64_t all = by_rank ? std::ssize(plans) : split.ranks * split.stages;
  std::vector<std::string> order;
  for (const RankGroup& group : groups) {
    for (const MemoryLine& line : group.plan->memory.lines) {
      if (std::ranges::find(order, line.what) == order.end()) order.push_back(line.what);
    }
  }
  std::vector<MemoryLine> joined;
  // `where`: empty for all ranks.
  const auto add = [&joined](MemoryLine line, const std::string& where, int64_t ranks) {
    line.ranks = ranks;
    for (const std::string& part :
         {where, ranks > 1 ? fmt::format("on each of {} ranks", ranks) : std::string()}) {
      if (!line.note.empty() && !part.empty()) line.note += ", ";
      line.note += part;
    }
    joined.push_back(std::move(line));
  };
  for (const std::string& what : order) {
    const MemoryLine* const first = groups.front().Find(what);
    const bool is_same = std::ranges::all_of(groups, [&](const RankGroup& group) {
      const MemoryLine* const line = group.Find(what);
      return first != nullptr && line != nullptr && line->bytes == first->bytes &&
             line->note == first->note;
    });
    if (has_all && is_same) {
      add(*first, "", all);
      continue;
    }
    for (const RankGroup& group : groups) {
      const MemoryLine* const line = group.Find(what);
      if (line != nullptr) add(*line, group.Name(by_rank), by_rank ? group.ranks : split.ranks);
    }
  }
  return joined;
}

}  // namespace tandem
