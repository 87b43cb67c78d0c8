#include "apps/models/session_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>

namespace tandem::apps {
namespace {

// Of a rank, whose part of the model is `spec`.
Result<ModelMemory> MemoryOf(const SessionOptions& options, const ModelSpec& spec, ModelIndex index,
                             ops::Backend& backend) {
  const AskedFormat kept = FormatOf(options, index);
  const Status loadable = CheckLoadable(spec, backend, kept);
  if ((kept.layers || kept.head) && loadable.code() == Code::kUnimplemented) {
    return Unimplemented(loadable.message() + ": leave out --weights and --head_weights");
  }
  TANDEM_RETURN_IF_ERROR(loadable);
  const int64_t positions = PositionsOf(spec, options.engine);
  return ModelMemory{.spec = &spec,
                     .weight_bytes = WeightBytes(spec, backend, positions, kept),
                     .max_positions = positions};
}

// Of the parts of all ranks, those of this process.
Result<std::vector<ModelSpec>> PartsHere(Result<std::vector<ModelSpec>> parts,
                                         const SessionOptions& options) {
  if (!parts.ok()) return parts;
  const auto first = parts->begin() + options.ranks.first;
  return std::vector<ModelSpec>(first, first + options.ranks.num_here());
}

// Bytes that loading will take on each rank. Ranks of a CPU have weights in common.
std::vector<int64_t> BytesToLoad(const Opening& opening, const WeightStore& store,
                                 const std::vector<ModelSpec>& parts, ModelIndex index,
                                 const std::vector<RankMemory>& ranks) {
  const bool is_target = index == ModelIndex::kTarget;
  const Opened& opened = is_target ? opening.pair.target : *opening.pair.draft;
  std::set<std::string> keys;
  std::vector<int64_t> bytes;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const ModelMemory& memory = is_target ? ranks[rank].target : ranks[rank].draft;
    const std::string key =
        StoreKeyOf(opening.options, opened, parts[rank], index, *opening.backends.front()[rank]);
    const bool is_new = key.empty() || keys.insert(key).second;
    const bool is_loaded = store.Find(key, memory.max_positions) != nullptr;
    bytes.push_back(is_new && !is_loaded ? memory.weight_bytes : 0);
  }
  return bytes;
}

// Free bytes on the rank's GPU, of the replica that has the least there.
int64_t FreeOn(const Opening& opening, size_t rank) {
  int64_t free = std::numeric_limits<int64_t>::max();
  for (const auto& ranks : opening.backends) free = std::min(free, ranks[rank]->FreeBytes());
  return free;
}

// What is left on each rank of its free memory once `bytes` are loaded. On a CPU replicas share it,
// and have the weights in common.
Status TakeFree(const Opening& opening, const std::vector<int64_t>& bytes,
                std::vector<RankMemory>& ranks) {
  const auto refuse = [](int64_t needed, int64_t free) {
    return FailedPrecondition(
        fmt::format("the weights need {}, {} are free", FormatBytes(needed), FormatBytes(free)));
  };
  if (opening.backend->device().kind == Device::Kind::kCpu) {
    const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    const int64_t free = opening.backend->FreeBytes();
    if (all > free) return refuse(all, free);
    const bool alone = opening.processes == nullptr;
    const int64_t sharing = alone ? std::ssize(ranks) * opening.options.replicas.count
                                  : opening.processes->peers.on_machine;
    for (RankMemory& rank : ranks) rank.free_bytes = (free - all) / sharing;
    return {};
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t free = FreeOn(opening, rank);
    if (bytes[rank] > free) return refuse(bytes[rank], free);
    ranks[rank].free_bytes = free - bytes[rank];
  }
  return {};
}

// Of each of several ranks; nothing for one.
std::vector<RankUse> UseOfRanks(const Opening& opening, const RankPlans& ranks) {
  std::vector<RankUse> uses;
  const size_t count = ranks.plans.size();
  if (count == 1) return uses;
  for (size_t rank = 0; rank < count; ++rank) {
    const ops::Backend& backend = *opening.backends.front()[rank];
    const Device device = backend.device();
    const bool on_cpu = device.kind == Device::Kind::kCpu;
    const int64_t sharing = on_cpu ? std::ssize(ranks.plans) * opening.options.replicas.count : 1;
    uses.push_back(MemoryOfRank(ranks.plans[rank].memory,
                                on_cpu ? "cpu" : fmt::format("cuda:{}", device.index),
                                ranks.weight_bytes[rank], backend.FreeBytes() / sharing));
  }
  return uses;
}

}  // namespace

Result<RankPlans> PlansOf(const Opening& opening, const WeightStore& store) {
  const SessionOptions& options = opening.options;
  const OpenedPair& pair = opening.pair;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ModelSpec> target_parts,
                          PartsHere(TargetParts(pair.target.model.spec, options.ranks), options));
  std::vector<ModelSpec> draft_parts;
  if (pair.draft) {
    TANDEM_ASSIGN_OR_RETURN(draft_parts,
                            PartsHere(DraftParts(pair.draft->model.spec, options.ranks), options));
  }
  std::vector<RankMemory> ranks;
  std::vector<int64_t> weight_bytes;
  for (size_t rank = 0; rank < target_parts.size(); ++rank) {
    ops::Backend& backend = *opening.backends.front()[rank];
    RankMemory& one = ranks.emplace_back();
    one.backend = &backend;
    TANDEM_ASSIGN_OR_RETURN(one.target,
                            MemoryOf(options, target_parts[rank], ModelIndex::kTarget, backend));
    if (pair.draft) {
      TANDEM_ASSIGN_OR_RETURN(one.draft,
                              MemoryOf(options, draft_parts[rank], ModelIndex::kDraft, backend));
    }
    weight_bytes.push_back(one.target.weight_bytes + one.draft.weight_bytes);
  }
  std::vector<int64_t> bytes =
      BytesToLoad(opening, store, target_parts, ModelIndex::kTarget, ranks);
  if (pair.draft) {
    const auto draft = BytesToLoad(opening, store, draft_parts, ModelIndex::kDraft, ranks);
    std::ranges::transform(bytes, draft, bytes.begin(), std::plus());
  }
  TANDEM_RETURN_IF_ERROR(TakeFree(opening, bytes, ranks));
  TANDEM_ASSIGN_OR_RETURN(std::vector<EnginePlan> plans, PlanRanks(options.engine, ranks));
  return RankPlans{.plans = std::move(plans), .weight_bytes = std::move(weight_bytes)};
}

std::string ShowMemoryLine(const MemoryLine& line) {
  std::string why = line.option.empty() ? "" : "--" + line.option;
  if (!line.note.empty()) why += " (" + line.note + ")";
  return fmt::format("  {:34} {:>10}  {}", line.what, FormatBytes(line.bytes), why);
}

Result<SessionPlan> PlanSession(const OptionValues& values) {
  SharedResources own;
  TANDEM_ASSIGN_OR_RETURN(Opening opening, Open(values, own, nullptr));
  SessionPlan plan;
  TANDEM_ASSIGN_OR_RETURN(const RankPlans ranks, PlansOf(opening, own.weights));
  plan.engine = ranks.plans.front();
  plan.engine.memory.lines = MemoryLinesOf(ranks.plans);
  NoteReplicas(opening.options.replicas.count, IsOnCpu(opening.options.backend),
               plan.engine.memory.lines);
  plan.ranks = UseOfRanks(opening, ranks);
  plan.ranks_why = std::move(opening.ranks_why);
  plan.target = opening.pair.target.model.name;
  if (opening.pair.draft) plan.draft = opening.pair.draft->model.name;
  plan.backends = std::move(opening.backends);
  return plan;
}

}  // namespace tandem::apps
