#include "apps/models/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "apps/models/rank_choice.h"
#include "base/cores.h"
#include "base/log.h"
#include "comm/cuda/cuda_ranks.h"
#include "comm/in_process.h"
#include "model/sharding.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kRanksName = "--tensor_parallel_size";
constexpr std::string_view kStagesName = "--pipeline_parallel_size";
constexpr std::string_view kDraftDevice = "draft_device";
constexpr std::string_view kExpertsName = "expert_parallel_size";

// Of the model `spec`, a target or a draft, with the draft split over `draft_ranks`.
RankLayout LayoutOf(const ModelSpec& spec, const RankOptions& ranks, int32_t draft_ranks) {
  return {.ranks = ranks.target,
          .stages = ranks.stages,
          .draft_ranks = draft_ranks,
          .draft_first = ranks.draft_first,
          .whole_experts = HasWholeExperts(spec, ranks.target, ranks.experts),
          .draft_whole_experts = HasWholeExperts(spec, draft_ranks, ranks.experts)};
}

Result<std::vector<ModelSpec>> PartsOfDraft(const ModelSpec& spec, int32_t draft_ranks,
                                            const RankOptions& ranks) {
  const RankLayout layout = LayoutOf(spec, ranks, draft_ranks);
  std::vector<ModelSpec> parts;
  for (int64_t rank = 0; rank < layout.count(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(parts.emplace_back(), RankSpec(spec, layout.DraftAt(rank)));
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
      BindOption<RankOptions, &RankOptions::experts>(
          {.name = kExpertsName,
           .meaning = "1: each rank has a share of every expert. As many as the ranks of a stage "
                      "(--tensor_parallel_size): each rank has some experts, whole. 0: shares "
                      "where the sizes divide, otherwise whole experts",
           .group = kRanks,
           .min = 0,
           .max = 64,
           .alias = "ep_size|moe_ep_size"}),
      BindOption<RankOptions, &RankOptions::draft_device>(
          {.name = kDraftDevice,
           .meaning =
               "Where the draft is, if not beside the target: cuda:N, a GPU that it has alone "
               "or one of the target's; several between commas, over which it is split. On a "
               "CPU: cpu, a rank with its share of the threads",
           .group = kRanks}),
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

Result<std::vector<int>> TargetGpus(const RankOptions& ranks) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<int> gpus, GpusOf(ranks.devices, "device"));
  while (std::ssize(gpus) < ranks.num_target()) gpus.push_back(gpus.back() + 1);
  return gpus;
}

Status PlaceDraft(const BackendOptions& backend, RankOptions& ranks) {
  const std::vector<std::string>& asked = ranks.draft_devices;
  if (asked.empty()) return {};
  const auto refuse = [&](std::string_view why) {
    return InvalidArgument(fmt::format("--{} {}: {}", kDraftDevice, fmt::join(asked, ","), why));
  };
  if (IsOnCpu(backend) != (asked.front() == "cpu")) {
    return refuse(IsOnCpu(backend) ? "the target is on the CPU, so the draft is too: cpu"
                                   : "the target is on GPUs, so the draft is too: cuda:N");
  }
  if (asked.front() == "cpu") {
    ranks.draft_first = ranks.num_target();
    return {};
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> gpus, GpusOf(asked, kDraftDevice));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> of_target, TargetGpus(ranks));
  const auto first = std::ranges::find(of_target, gpus.front());
  const auto shared = std::ranges::count_if(
      gpus, [&](int gpu) { return std::ranges::find(of_target, gpu) != of_target.end(); });
  if (shared == 0) {
    ranks.draft_first = ranks.num_target();
  } else if (shared == std::ssize(gpus) && shared == std::ssize(of_target) && ranks.stages == 1) {
    ranks.draft_devices.clear();  // beside the target
  } else if (shared == 1 && gpus.size() == 1) {
    ranks.draft_first = static_cast<int32_t>(first - of_target.begin());
  } else {
    return refuse(fmt::format(
        "the target is on GPU{} {}: name one of its GPUs, or only GPUs that it does not have",
        of_target.size() == 1 ? "" : "s", fmt::join(of_target, ",")));
  }
  return {};
}

BackendOptions BackendOfRank(const BackendOptions& options, const RankOptions& ranks,
                             int32_t rank) {
  if (ranks.num_here() == 1) return options;
  BackendOptions share = options;
  share.cpu = ShareOf(options.cpu, ranks.num_here(), rank);
  return share;
}

Result<std::vector<std::shared_ptr<ops::Backend>>> MakeRankBackends(
    const BackendOptions& options, const RankOptions& ranks, std::shared_ptr<ops::Backend> first) {
  const Device device = first->device();
  const char* const loading = ::getenv("CUDA_MODULE_LOADING");
  if (device.kind == Device::Kind::kCuda && ranks.num_here() > 1 && loading != nullptr &&
      std::string_view(loading) == "EAGER") {
    LogWarning(
        "CUDA_MODULE_LOADING=EAGER: a kernel of NVIDIA's library that is first needed while the "
        "model runs then waits for all its GPUs, which may wait for each other for ever; unset it");
  }
  std::vector<std::shared_ptr<ops::Backend>> backends = {std::move(first)};
  for (int32_t rank = 1; rank < ranks.num_here(); ++rank) {
    BackendOptions own = BackendOfRank(options, ranks, rank);
    const int32_t of_draft = rank - ranks.num_target();
    const bool is_listed = ranks.devices.size() > 1 || of_draft >= 0;
    if (of_draft >= 0) {
      own.device = ranks.draft_devices.at(static_cast<size_t>(of_draft));
    } else if (is_listed) {
      own.device = ranks.devices.at(static_cast<size_t>(rank));
    } else if (device.kind == Device::Kind::kCuda) {
      own.device = fmt::format("cuda:{}", device.index + rank);
    }
    Result<std::unique_ptr<ops::Backend>> made = MakeBackend(own);
    if (!made.ok()) {
      if (of_draft >= 0) return made.status().Annotate(fmt::format("--{}", kDraftDevice));
      return is_listed ? made.status()
                       : made.status().Annotate(ranks.target == 1 ? kStagesName : kRanksName);
    }
    backends.push_back(*std::move(made));
  }
  return backends;
}

Result<std::vector<std::shared_ptr<Communicator>>> MakeCommunicators(
    const std::vector<std::shared_ptr<ops::Backend>>& backends, const Stages& stages) {
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
  if (ranks.experts > 1 && ranks.target > 1 && ranks.experts != ranks.target) {
    return InvalidArgument(fmt::format(
        "--{} {}: it must be 1 or the ranks of a stage (--tensor_parallel_size), which are {}",
        kExpertsName, ranks.experts, ranks.target));
  }
  // Of a draft beside the target the number of ranks is not asked for here.
  const RankLayout layout = LayoutOf(spec, ranks, std::max(ranks.num_own_draft(), 1));
  std::vector<ModelSpec> parts;
  for (int64_t rank = 0; rank < layout.count(); ++rank) {
    Result<ModelSpec> part = RankSpec(spec, layout.TargetAt(rank));
    if (!part.ok()) return part.status().Annotate(kRanksName);
    parts.push_back(*std::move(part));
  }
  return parts;
}

Result<std::vector<ModelSpec>> DraftParts(const ModelSpec& spec, const RankOptions& ranks) {
  if (ranks.draft_first != RankLayout::kOnEach) {
    const auto places = static_cast<int32_t>(ranks.draft_devices.size());
    if (ranks.draft > 0 && ranks.draft != places) {
      return InvalidArgument(fmt::format(
          "--draft_tensor_parallel_size {}: --draft_device names {} device{}, which the draft is "
          "split over",
          ranks.draft, places, places == 1 ? "" : "s"));
    }
    Result<std::vector<ModelSpec>> parts = PartsOfDraft(spec, places, ranks);
    if (!parts.ok()) return parts.status().Annotate("--draft_device");
    return parts;
  }
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
