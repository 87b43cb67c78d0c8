#include "apps/models/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/cores.h"
#include "base/log.h"
#include "comm/cuda/cuda_ranks.h"
#include "comm/in_process.h"
#include "model/sharding.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kRanksName = "--tensor_parallel_size";
constexpr std::string_view kStagesName = "--pipeline_parallel_size";

// On each stage, the draft split over `size` ranks, which is all of the stage or 1.
Result<std::vector<ModelSpec>> PartsOfDraft(const ModelSpec& spec, int32_t size,
                                            const RankOptions& ranks) {
  std::vector<ModelSpec> parts;
  for (int32_t rank = 0; rank < ranks.count(); ++rank) {
    const RankPlace place{.rank = rank % size, .ranks = size};
    TANDEM_ASSIGN_OR_RETURN(parts.emplace_back(), RankSpec(spec, place));
  }
  return parts;
}

std::vector<ops::Backend*> PointersTo(const std::vector<std::shared_ptr<ops::Backend>>& backends) {
  std::vector<ops::Backend*> pointers;
  for (const auto& backend : backends) pointers.push_back(backend.get());
  return pointers;
}

std::vector<std::shared_ptr<Communicator>> Shared(
    std::vector<std::unique_ptr<Communicator>> communicators) {
  return {std::make_move_iterator(communicators.begin()),
          std::make_move_iterator(communicators.end())};
}

}  // namespace

const BoundOptions<RankOptions>& RankOptionRows() {
  constexpr std::string_view kRanks = "Ranks";
  static const BoundOptions<RankOptions> rows({
      BindOption<RankOptions, &RankOptions::target>(
          {.name = "tensor_parallel_size",
           .meaning =
               "Ranks that the target is split over, by heads and neurons. On a CPU each rank "
               "has its share of the threads. 0: one rank for each device that --device "
               "lists; otherwise the number that the engine or checkpoint was built for, "
               "if there are enough GPUs or cores; otherwise one",
           .group = kRanks,
           .min = 0,
           .max = 64,
           .alias = "tp_size"}),
      BindOption<RankOptions, &RankOptions::draft>(
          {.name = "draft_tensor_parallel_size",
           .meaning = "Ranks that the draft is split over: those of the target, or 1 for a whole "
                      "draft on each rank. 0: split if possible",
           .group = kRanks,
           .min = 0,
           .max = 64,
           .alias = "draft_tp_size"}),
      BindOption<RankOptions, &RankOptions::world_size>(
          {.name = "world_size",
           .meaning = "Number of processes of an MPI launch in old command lines; with "
                      "--tensor_parallel_size 0, the number of ranks of a model that was built for "
                      "one",
           .group = kRanks,
           .min = 1,
           .max = 4096}),
      BindOption<RankOptions, &RankOptions::stages>(
          {.name = "pipeline_parallel_size",
           .meaning = "Stages that the target is split into by layers, each of as many ranks as "
                      "--tensor_parallel_size says",
           .group = kRanks,
           .min = 1,
           .max = 64,
           .alias = "pp_size"}),
  });
  return rows;
}

BackendOptions BackendOfRank(const BackendOptions& options, const RankOptions& ranks,
                             int32_t rank) {
  if (ranks.num_here() == 1) return options;
  BackendOptions share = options;
  share.cpu = ShareOf(options.cpu, ranks.num_here(), rank);
  return share;
}

// A kernel that is loaded when it is first used may wait for those that run, which may wait for
// another rank, which may wait for the loading.
void PrepareForRanks(const RankOptions& ranks) {
  if (std::max(ranks.count(), ranks.world_size) > 1 || ranks.devices.size() > 1) {
    ::setenv("CUDA_MODULE_LOADING", "EAGER", /*replace=*/0);
  }
}

Result<std::vector<std::shared_ptr<ops::Backend>>> MakeRankBackends(
    const BackendOptions& options, const RankOptions& ranks, std::shared_ptr<ops::Backend> first) {
  const Device device = first->device();
  std::vector<std::shared_ptr<ops::Backend>> backends = {std::move(first)};
  for (int32_t rank = 1; rank < ranks.num_here(); ++rank) {
    BackendOptions own = BackendOfRank(options, ranks, rank);
    const bool is_listed = ranks.devices.size() > 1;
    if (is_listed) {
      own.device = ranks.devices.at(static_cast<size_t>(rank));
    } else if (device.kind == Device::Kind::kCuda) {
      own.device = fmt::format("cuda:{}", device.index + rank);
    }
    Result<std::unique_ptr<ops::Backend>> made = MakeBackend(own);
    if (!made.ok()) {
      return is_listed ? made.status()
                       : made.status().Annotate(ranks.target == 1 ? kStagesName : kRanksName);
    }
    backends.push_back(*std::move(made));
  }
  return backends;
}

Result<std::vector<std::shared_ptr<Communicator>>> MakeCommunicators(
    const std::vector<std::shared_ptr<ops::Backend>>& backends, int32_t stages) {
  if (backends.size() == 1) return std::vector<std::shared_ptr<Communicator>>{nullptr};
  std::vector<std::unique_ptr<Communicator>> made;
  if (backends.front()->device().kind == Device::Kind::kCpu) {
    made = MakeInProcessRanks(static_cast<int>(backends.size()), stages);
  } else {
    TANDEM_ASSIGN_OR_RETURN(made, MakeCudaRanks(PointersTo(backends), stages));
  }
  return Shared(std::move(made));
}

Result<std::vector<std::shared_ptr<Communicator>>> MakeCommunicatorsOfProcesses(
    const std::vector<std::shared_ptr<ops::Backend>>& backends,
    std::shared_ptr<Communicator> processes, int32_t stages) {
  if (backends.front()->device().kind == Device::Kind::kCpu) {
    return std::vector<std::shared_ptr<Communicator>>{std::move(processes)};
  }
  TANDEM_ASSIGN_OR_RETURN(auto made,
                          MakeCudaRanksOfProcesses(PointersTo(backends), processes, stages));
  return Shared(std::move(made));
}

Result<std::vector<ModelSpec>> TargetParts(const ModelSpec& spec, const RankOptions& ranks) {
  const Sharding stages{.pp_size = ranks.stages};
  if (const Status status = CheckSharding(spec, stages); !status.ok()) {
    return status.Annotate(kStagesName);
  }
  std::vector<ModelSpec> parts;
  for (int32_t rank = 0; rank < ranks.count(); ++rank) {
    Result<ModelSpec> part =
        RankSpec(spec, {rank % ranks.target, ranks.target, rank / ranks.target, ranks.stages});
    if (!part.ok()) return part.status().Annotate(kRanksName);
    parts.push_back(*std::move(part));
  }
  return parts;
}

Result<std::vector<ModelSpec>> DraftParts(const ModelSpec& spec, const RankOptions& ranks) {
  if (ranks.draft > 1 && ranks.draft != ranks.target) {
    return InvalidArgument(
        fmt::format("--draft_tensor_parallel_size {}: it must be 1 or that of the target, which is "
                    "{}",
                    ranks.draft, ranks.target));
  }
  const int32_t size = ranks.draft == 0 ? ranks.target : ranks.draft;
  Result<std::vector<ModelSpec>> parts = PartsOfDraft(spec, size, ranks);
  if (!parts.ok() && ranks.draft == 0) {
    LogWarning("each rank has all of the draft: {}", parts.status().message());
    return PartsOfDraft(spec, 1, ranks);
  }
  if (!parts.ok()) return parts.status().Annotate("--draft_tensor_parallel_size");
  return parts;
}

}  // namespace tandem::apps
