#include "apps/models/replicas.h"

#include <fmt/format.h>

#include <algorithm>

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

Status ShareDevices(RankOptions& ranks, ReplicaOptions& replicas) {
  const size_t named = ranks.devices.size();
  const auto count = static_cast<size_t>(replicas.count);
  if (count == 1 || named <= 1) return {};
  if (named % count != 0) {
    return InvalidArgument(
        fmt::format("--data_parallel_size {}: --device names {} devices; name as many for each "
                    "replica, or only the first",
                    replicas.count, named));
  }
  replicas.devices = ranks.devices;
  ranks.devices.resize(named / count);
  return {};
}

Result<std::vector<std::vector<std::shared_ptr<ops::Backend>>>> MakeReplicaBackends(
    const BackendOptions& options, const ReplicaOptions& replicas, const RankOptions& ranks,
    SharedDevices& devices) {
  std::vector<std::vector<std::shared_ptr<ops::Backend>>> made;
  for (int32_t replica = 0; replica < replicas.count; ++replica) {
    BackendOptions own = BackendOfReplica(options, replicas, replica);
    RankOptions own_ranks = ranks;
    if (!replicas.devices.empty()) {
      const auto first = replicas.devices.begin() + replica * std::ssize(ranks.devices);
      own_ranks.devices.assign(first, first + std::ssize(ranks.devices));
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
