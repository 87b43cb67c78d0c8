#include "runtime/engine_factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/free_memory.h"
#include "base/options.h"
#include "model/kv_pool.h"
#include "runtime/execution/rank_thread.h"
#include "runtime/execution/ranked_executor.h"
#include "runtime/execution/rehearsal.h"
#include "runtime/execution/remote_rank.h"
#include "runtime/execution/round_executor.h"
#include "runtime/rank_agreement.h"

namespace tandem {
namespace {

constexpr auto kTarget = static_cast<size_t>(ModelIndex::kTarget);
constexpr auto kDraft = static_cast<size_t>(ModelIndex::kDraft);

// Weights may have been loaded for fewer positions than the model has.
int64_t MaxPositions(const Weights& weights) {
  return std::min(weights.spec.max_positions, weights.max_positions);
}

// A model without weights is none.
ModelMemory MemoryOf(const EngineModel& model) {
  if (model.weights == nullptr) return {};
  return {.spec = &model.weights->spec,
          .weight_bytes = model.weights->bytes,
          .max_positions = MaxPositions(*model.weights)};
}

PromptRules RulesOf(const EngineModel& model) {
  return PromptRulesOf(model.weights->spec, model.weights->max_positions);
}

// Says what the memory was refused for, and which options make it smaller. Other errors are
// unchanged.
Status Explain(const Status& status, std::string_view what, std::string_view smaller) {
  if (status.code() != Code::kResourceExhausted) return status;
  return status.Annotate(fmt::format("no memory for {} (a smaller {} helps)", what, smaller));
}

Result<ops::KvPool> MakePool(const Weights& weights, const MemoryPlan& plan,
                             int32_t num_window_blocks, const EngineOptions& options,
                             ops::Backend& backend, std::vector<Buffer>& buffers) {
  const DType stored = KvTypeOf(options, weights.spec);
  Result<OwnedKvPool> owned =
      MakeKvPool(weights.spec, stored, plan.num_blocks, options.block_tokens, backend,
                 weights.kv_scales, num_window_blocks);
  if (!owned.ok()) {
    return Explain(owned.status(), "the key-value cache",
                   "--kv_cache_bytes or --kv_cache_free_gpu_mem_fraction");
  }
  std::ranges::move(owned->memory, std::back_inserter(buffers));
  return owned->pool;
}

// `heartbeat`: null for none.
Result<std::unique_ptr<ForwardPass>> MakePass(const EngineModel& model, const EngineRank& rank,
                                              int32_t max_rows, int32_t max_logits_rows,
                                              Heartbeat* heartbeat) {
  Result<std::unique_ptr<Decoder>> decoder =
      Decoder::Create(model.weights, *rank.backend, max_rows, max_logits_rows, heartbeat,
                      model.weights->spec.place.is_whole() ? nullptr : rank.ranks.get());
  if (!decoder.ok()) {
    return Explain(decoder.status(), "a model's scratch buffers",
                   "--max_num_tokens or --max_batch_size");
  }
  return std::unique_ptr<ForwardPass>(std::make_unique<DecoderPass>(*std::move(decoder)));
}

// Host memory is looked at first: pinning takes what others use, and may end the process instead of
// being refused.
Result<std::unique_ptr<HostBlocks>> MakeHostBlocks(const MemoryPlan& plan,
                                                   const ExecutorModels& models,
                                                   ops::Backend& backend) {
  const int64_t bytes = plan.num_host_blocks * plan.block_bytes;
  if (const int64_t free = FreeHostBytes(); bytes > free) {
    return FailedPrecondition(fmt::format("kv_host_cache_bytes is {}; {} of host memory are free",
                                          FormatBytes(bytes), FormatBytes(free)));
  }
  Result<std::unique_ptr<HostBlocks>> made =
      HostBlocks::Create(plan.num_host_blocks, models.target_pool, models.draft_pool, backend);
  if (made.ok()) return made;
  return Explain(made.status(), "evicted keys and values", "--kv_host_cache_bytes");
}

// What was planned, and the host memory that steps copy from and to.
MemoryUse MemoryUseOf(const MemoryPlan& plan, int64_t pinned, const ops::Backend& backend) {
  int64_t planned = 0;
  for (const MemoryLine& line : plan.lines) planned += line.pinned ? 0 : line.bytes;
  if (backend.device().kind == Device::Kind::kCpu) return {.cpu = planned + pinned};
  return {.gpu = planned, .pinned = pinned};
}

// Ranks whose memory is that of one device share what is free of it.
std::vector<RankMemory> MemoryOfRanks(const std::vector<EngineRank>& ranks) {
  std::vector<RankMemory> memory;
  for (const EngineRank& rank : ranks) {
    const Device device = rank.backend->device();
    const auto sharing = std::ranges::count_if(
        ranks, [device](const EngineRank& other) { return other.backend->device() == device; });
    memory.push_back({.target = MemoryOf(rank.target),
                      .draft = MemoryOf(rank.draft),
                      .backend = rank.backend,
                      .free_bytes = rank.backend->FreeBytes() / sharing});
  }
  return memory;
}

// The models and the state of one rank.
Result<std::unique_ptr<RoundExecutor>> MakeExecutor(const EnginePlan& plan, const EngineRank& rank,
                                                    const Clock& clock, Heartbeat* heartbeat) {
  const MemoryPlan& memory = plan.memory;
  const EngineOptions& options = plan.options;
  const int32_t rows = options.max_num_tokens;
  ops::Backend& backend = *rank.backend;
  ExecutorModels models;
  models.ranks = rank.ranks.get();
  TANDEM_ASSIGN_OR_RETURN(
      models.target, MakePass(rank.target, rank, rows, plan.limits.max_logits_rows, heartbeat));
  TANDEM_ASSIGN_OR_RETURN(models.target_pool,
                          MakePool(*rank.target.weights, memory, memory.num_window_blocks, options,
                                   backend, models.memory));
  if (plan.limits.draft_model) {
    TANDEM_ASSIGN_OR_RETURN(models.draft,
                            MakePass(rank.draft, rank, rows, options.max_batch_size, heartbeat));
    TANDEM_ASSIGN_OR_RETURN(models.draft_pool, MakePool(*rank.draft.weights, memory, 0, options,
                                                        backend, models.memory));
  }
  if (memory.num_host_blocks > 0) {
    TANDEM_ASSIGN_OR_RETURN(models.host_blocks, MakeHostBlocks(memory, models, backend));
  }
  ExecutorConfig config = MakeExecutorConfig(options, plan.limits, backend);
  config.row_forms = plan.row_forms;
  Result<std::unique_ptr<RoundExecutor>> executor =
      RoundExecutor::Create(config, backend, std::move(models), clock);
  if (!executor.ok()) {
    return Explain(executor.status(), "the state of running requests",
                   "--max_batch_size or --max_seq_len");
  }
  return executor;
}

// The ranks of this process as one, which the first leads, with those of the processes that follow
// it. Adds the memory that they have taken.
Result<RankParts> MakeRanks(std::span<const EnginePlan> plans, const std::vector<EngineRank>& ranks,
                            const Clock& clock, Heartbeat* heartbeat,
                            std::span<const std::shared_ptr<RankLink>> followers,
                            MemoryUse& memory) {
  RankParts first;
  std::vector<std::unique_ptr<OtherRank>> others;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const EngineRank& rank = ranks[i];
    const EnginePlan& plan = plans[i];
    EnterDevice(rank);
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<RoundExecutor> executor,
                            MakeExecutor(plan, rank, clock, i == 0 ? heartbeat : nullptr));
    memory += MemoryUseOf(plan.memory, executor->pinned_bytes(), *rank.backend);
    RankParts made = {rank.ranks, std::move(executor)};
    if (i == 0) {
      first = std::move(made);
    } else {
      others.push_back(std::make_unique<RankThread>(std::move(made), plan.options.max_batch_size));
    }
  }
  for (const auto& link : followers) {
    others.push_back(std::make_unique<RemoteRank>(link, first.ranks));
  }
  EnterDevice(ranks.front());
  if (others.empty()) return first;
  RankParts joined = {first.ranks, nullptr};
  joined.executor = std::make_unique<RankedExecutor>(std::move(first), std::move(others));
  return joined;
}

}  // namespace

void EnterDevice(const EngineRank& rank) {
  if (rank.backend->device().kind == Device::Kind::kCuda) rank.backend->BindThread();
}

Result<std::vector<EnginePlan>> PlanEngineRanks(const EngineOptions& asked,
                                                const std::vector<EngineRank>& ranks,
                                                const RankProcesses& processes) {
  std::vector<RankMemory> memory = MemoryOfRanks(ranks);
  if (processes.links.empty()) return PlanRanks(asked, memory);
  std::array<int64_t, 1> least = {std::numeric_limits<int64_t>::max()};
  for (const RankMemory& rank : memory) {
    const bool on_cpu = rank.backend->device().kind == Device::Kind::kCpu;
    least[0] = std::min(least[0], rank.free_bytes / (on_cpu ? processes.on_machine : 1));
  }
  TANDEM_RETURN_IF_ERROR(TakeLeast(least, processes));
  for (RankMemory& rank : memory) rank.free_bytes = least[0];
  TANDEM_ASSIGN_OR_RETURN(const std::vector<EnginePlan> plans, PlanRanks(asked, memory));
  const EngineRank& first = ranks.front();
  const Weights* const draft = first.draft.weights.get();
  const MemoryPlan& own = plans.front().memory;
  std::array<int64_t, 2> blocks = {own.num_blocks, own.num_host_blocks};
  TANDEM_RETURN_IF_ERROR(TakeLeast(blocks, processes));
  const FewestBlocks fewest = {.device = blocks[0], .host = blocks[1]};
  TANDEM_ASSIGN_OR_RETURN(std::vector<EnginePlan> agreed, PlanRanks(asked, memory, fewest));
  TANDEM_RETURN_IF_ERROR(AgreeOnPlan(agreed.front(), first.target.weights->spec,
                                     draft == nullptr ? nullptr : &draft->spec, processes));
  return agreed;
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& asked,
                                               const EngineModel& target, const EngineModel& draft,
                                               ops::Backend& backend, const Clock& clock,
                                               const std::shared_ptr<Turns>& turns) {
  return Create(asked, {{.backend = &backend, .ranks = {}, .target = target, .draft = draft}},
                clock, turns);
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& asked,
                                               const std::vector<EngineRank>& ranks,
                                               const Clock& clock,
                                               const std::shared_ptr<Turns>& turns,
                                               const RankProcesses* processes) {
  const RankProcesses others = processes == nullptr ? RankProcesses() : *processes;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<EnginePlan> plans,
                          PlanEngineRanks(asked, ranks, others));
  TANDEM_ASSIGN_OR_RETURN(EngineParts parts, MakeEngineParts(plans, ranks, clock, turns, others));
  return FromParts(std::move(parts), clock);
}

Result<EngineParts> MakeEngineParts(std::span<const EnginePlan> plans,
                                    const std::vector<EngineRank>& ranks, const Clock& clock,
                                    const std::shared_ptr<Turns>& turns,
                                    const RankProcesses& processes) {
  const Turn turn(turns.get());
  const EnginePlan& plan = plans.front();
  const EngineRank& leader = ranks.front();
  const MemoryPlan& memory = plan.memory;
  EngineParts parts;
  parts.turns = turns;
  parts.options = plan.options;
  parts.limits = plan.limits;
  parts.vocab_size = leader.target.weights->spec.vocab_size;
  parts.prompt_rules[kTarget] = RulesOf(leader.target);
  if (parts.limits.draft_model) parts.prompt_rules[kDraft] = RulesOf(leader.draft);
  parts.kv = {.num_blocks = memory.num_blocks,
              .block_tokens = plan.options.block_tokens,
              .enable_reuse = plan.options.enable_prefix_reuse,
              .window_tokens = memory.window_tokens,
              .num_window_blocks = memory.num_window_blocks,
              .num_host_blocks = memory.num_host_blocks};
  for (const EnginePlan& rank : plans) parts.kv.block_bytes += rank.memory.block_bytes;
  if (plan.options.kv_event_buffer > 0) {
    std::random_device random;
    const uint64_t secret = (uint64_t{random()} << 32) | random();
    parts.kv_events =
        std::make_unique<KvEvents>(plan.options.kv_event_buffer, parts.kv.num_blocks,
                                   parts.kv.num_host_blocks, parts.kv.block_tokens, secret);
    parts.kv.events = parts.kv_events.get();
  }
  parts.memory_plan = MemoryLinesOf(plans);
  parts.heartbeat = std::make_unique<Heartbeat>(clock);

  TANDEM_ASSIGN_OR_RETURN(RankParts made, MakeRanks(plans, ranks, clock, parts.heartbeat.get(),
                                                    processes.links, parts.memory));
  parts.executor = std::move(made.executor);
  ExecutorConfig config = MakeExecutorConfig(plan.options, plan.limits, *leader.backend);
  config.row_forms = plan.row_forms;
  const bool adaptive = plan.options.draft_mode == DraftMode::kAdaptive;
  if (adaptive || !config.on_host) {
    const RehearsalScope scope = {.num_blocks = memory.num_blocks,
                                  .num_window_blocks = memory.num_window_blocks,
                                  .vocab = parts.vocab_size,
                                  .draft_model = parts.limits.draft_model,
                                  .draft_max_positions = parts.limits.draft_max_positions};
    TANDEM_RETURN_IF_ERROR(
        Rehearse(*parts.executor, config, scope, clock, turn, adaptive ? &parts.costs : nullptr));
  }
  // Waits until the work enqueued since loading has run, or the device has failed.
  for (const EngineRank& rank : ranks) TANDEM_RETURN_IF_ERROR(rank.backend->Synchronize());
  return parts;
}

Status FollowEngine(const EngineOptions& asked, const std::vector<EngineRank>& ranks,
                    const Clock& clock, const RankProcesses& processes) {
  TANDEM_CHECK(!processes.leads(), "a process that leads follows nobody");
  TANDEM_ASSIGN_OR_RETURN(const std::vector<EnginePlan> plans,
                          PlanEngineRanks(asked, ranks, processes));
  MemoryUse memory;
  TANDEM_ASSIGN_OR_RETURN(RankParts parts, MakeRanks(plans, ranks, clock, /*heartbeat=*/nullptr,
                                                     /*followers=*/{}, memory));
  return FollowLeader(parts, *processes.links.front(), plans.front().options.max_batch_size);
}

}  // namespace tandem
