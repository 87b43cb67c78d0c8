#include "apps/models/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/cores.h"

namespace tandem::apps {

const BoundOptions<ReplicaOptions>& ReplicaOptionRows() {
  static const BoundOptions<ReplicaOptions> rows({
      BindOption<ReplicaOptions, &ReplicaOptions::count>(
          {.name = "data_parallel_size",
           .meaning = "Replicas of the model, with its draft, behind one door: each on GPUs of its "
                      "own, or on its share of the CPU's threads. Options of the engine, such as "
                      "--max_batch_size, --max_queue_size and --kv_cache_bytes, are those of each "
                      "replica",
           .group = "Ranks",
           .min = 1,
           .max = 64,
           .alias = "dp_size"}),
  });
  return rows;
}

BackendOptions BackendOfReplica(const BackendOptions& options, const ReplicaOptions& replicas,
                                int32_t replica) {
  if (replicas.count == 1) return options;
  BackendOptions share = options;
  share.cpu = ShareOf(options.cpu, replicas.count, replica);
  return share;
}

namespace {

// Replica `replica`'s part of devices that are named for all.
std::vector<std::string> PartOf(const std::vector<std::string>& all, int32_t count,
                                int32_t replica) {
  const auto each = std::ssize(all) / count;
  const auto first = all.begin() + replica * each;
  return {first, first + each};
}

}  // namespace

Status ShareDevices(RankOptions& ranks, ReplicaOptions& replicas) {
  const int32_t count = replicas.count;
  if (count == 1) return {};
  const auto named = std::ssize(ranks.devices), for_drafts = std::ssize(ranks.draft_devices);
  const auto refuse = [&](std::string_view why) {
    return InvalidArgument(fmt::format("--data_parallel_size {}: {}", count, why));
  };
  if (named > 1) {
    if (named % count != 0) {
      return refuse(fmt::format(
          "--device names {} devices; name as many for each replica, or only the first", named));
    }
    replicas.devices = ranks.devices;
    ranks.devices = PartOf(replicas.devices, count, 0);
  }
  // Each replica's draft has ranks on the one CPU.
  if (for_drafts == 0 || ranks.draft_devices.front() == "cpu") return {};
  if (named == 1 || for_drafts % count != 0) {
    return refuse(fmt::format(
        "--device names {} device{} and --draft_device {}; name as many for each replica", named,
        named == 1 ? "" : "s", for_drafts));
  }
  replicas.draft_devices = ranks.draft_devices;
  ranks.draft_devices = PartOf(replicas.draft_devices, count, 0);
  return {};
}

Status CheckDraftPlaces(const BackendOptions& options, const ReplicaOptions& replicas,
                        const RankOptions& ranks) {
  if (replicas.draft_devices.empty()) return {};
  // Of each replica the target's GPUs, before any draft's.
  std::set<int> taken;
  std::vector<RankOptions> all;
  for (int32_t replica = 0; replica < replicas.count; ++replica) {
    RankOptions& own = all.emplace_back(ranks);
    own.devices = PartOf(replicas.devices, replicas.count, replica);
    own.draft_devices = PartOf(replicas.draft_devices, replicas.count, replica);
    own.draft_first = static_cast<int32_t>(RankLayout::kOnEach);
    if (const Status placed = PlaceDraft(options, own); !placed.ok()) {
      return placed.Annotate(fmt::format("replica {}", replica));
    }
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int> gpus, TargetGpus(own));
    taken.insert(gpus.begin(), gpus.end());
  }
  for (int32_t replica = 0; replica < replicas.count; ++replica) {
    const RankOptions& own = all[static_cast<size_t>(replica)];
    const auto refuse = [&](std::string_view why) {
      return InvalidArgument(
          fmt::format("--draft_device: the draft of replica {} {}", replica, why));
    };
    if (own.draft_first != ranks.draft_first) {
      return refuse(
          "is not where that of replica 0 is: each has its own GPUs, or the same place among its "
          "target's");
    }
    if (own.num_own_draft() == 0) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int> gpus, GpusOf(own.draft_devices, "draft_device"));
    for (const int gpu : gpus) {
      if (!taken.insert(gpu).second)
        return refuse(fmt::format("is on GPU {}, which is taken", gpu));
    }
  }
  return {};
}

Result<std::vector<std::vector<std::shared_ptr<ops::Backend>>>> MakeReplicaBackends(
    const BackendOptions& options, const ReplicaOptions& replicas, const RankOptions& ranks,
    SharedDevices& devices) {
  std::vector<std::vector<std::shared_ptr<ops::Backend>>> made;
  for (int32_t replica = 0; replica < replicas.count; ++replica) {
    BackendOptions own = BackendOfReplica(options, replicas, replica);
    RankOptions own_ranks = ranks;
    if (!replicas.draft_devices.empty()) {
      own_ranks.draft_devices = PartOf(replicas.draft_devices, replicas.count, replica);
    }
    if (!replicas.devices.empty()) {
      own_ranks.devices = PartOf(replicas.devices, replicas.count, replica);
      own.device = own_ranks.devices.front();
    } else if (replica > 0) {
      const Device last = made.back().back()->device();
      if (last.kind == Device::Kind::kCuda) own.device = fmt::format("cuda:{}", last.index + 1);
    }
    Result<std::shared_ptr<ops::Backend>> first =
        devices.BackendFor(BackendOfRank(own, own_ranks, 0), replica);
    if (!first.ok()) {
      return replica == 0 ? first.status() : first.status().Annotate("--data_parallel_size");
    }
    TANDEM_ASSIGN_OR_RETURN(made.emplace_back(),
                            MakeRankBackends(own, own_ranks, *std::move(first)));
  }
  return made;
}

}  // namespace tandem::apps
