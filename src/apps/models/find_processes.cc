#include "apps/models/find_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "ops/backend.h"

namespace tandem::apps {
namespace {

// Of each stage: one for each process where nobody has said how many. On a CPU the draft may have
// some of the processes.
int32_t RanksOfProcesses(int32_t num_processes, bool on_gpu, const RankOptions& ranks) {
  if (ranks.target > 0) return ranks.target;
  if (!on_gpu) num_processes -= static_cast<int32_t>(ranks.draft_devices.size());
  return std::max(num_processes / ranks.stages, 1);
}

// On a CPU each process is a rank.
Status CheckCpuProcesses(const BackendOptions& backend, int32_t num_processes,
                         const RankOptions& ranks) {
  const int32_t target = RanksOfProcesses(num_processes, /*on_gpu=*/false, ranks);
  const auto of_draft = static_cast<int32_t>(ranks.draft_devices.size());
  if (target * ranks.stages + of_draft != num_processes) {
    const std::string stages =
        ranks.stages == 1 ? "" : fmt::format(" in each of {} stages", ranks.stages);
    const std::string draft = of_draft == 0 ? "" : fmt::format(", {} of the draft", of_draft);
    return InvalidArgument(fmt::format(
        "--tensor_parallel_size {}{}{}: there are {} processes, and on a CPU each is a rank",
        target, stages, draft, num_processes));
  }
  if (backend.device.find(',') == std::string::npos) return {};
  return InvalidArgument(
      "--device: each process of a model on a CPU is one rank, so name one device");
}

}  // namespace

Result<std::shared_ptr<ProcessGroup>> FindProcesses(const OptionValues& values, bool joins,
                                                    SessionOptions& options,
                                                    SharedResources& shared) {
  const ProcessOptions processes = ProcessOptionRows().Read(values);
  RankWorld world;
  world.size = NumProcesses(processes, ::getenv);
  if (joins) {
    TANDEM_ASSIGN_OR_RETURN(world, WorldOf(processes, ::getenv));
  } else {
    TANDEM_RETURN_IF_ERROR(CheckProcessRank(processes.rank, world.size));
  }
  if (world.size == 1) return std::shared_ptr<ProcessGroup>();
  RankOptions& ranks = options.ranks;
  const bool on_gpu = !IsOnCpu(options.backend);
  world.stages = {.count = ranks.stages,
                  .apart = on_gpu ? 0 : static_cast<int>(ranks.draft_devices.size())};
  if (!on_gpu) TANDEM_RETURN_IF_ERROR(CheckCpuProcesses(options.backend, world.size, ranks));
  if (options.replicas.count > 1) {
    return InvalidArgument(
        "--data_parallel_size: the processes of a model are one replica; start others on their "
        "own, behind a gateway");
  }
  if (!joins) {
    if (on_gpu && ranks.target == 0) {
      LogWarning(
          "--tensor_parallel_size: a plan without it takes a GPU for each of the {} processes; "
          "machines of their own would use all of theirs",
          world.size);
    }
    ranks.target = RanksOfProcesses(world.size, on_gpu, ranks);
    TANDEM_ASSIGN_OR_RETURN(const int32_t places, NumPlaces(options.backend));
    // The ranks of the first of several machines, where this one has no room for all.
    if (on_gpu && ranks.count() > places && ranks.count() % world.size == 0) {
      ranks.here = ranks.count() / world.size;
    }
    return std::shared_ptr<ProcessGroup>();
  }
  if (shared.processes != nullptr && (!on_gpu || shared.processes->shares_engine())) {
    return Unimplemented("--num_processes: several processes serve one model, and no second one");
  }
  if (shared.processes == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(shared.processes,
                            JoinProcesses(world, on_gpu, options.backend.cpu.isa));
  }
  const ProcessGroup& group = *shared.processes;
  if (group.waits()) return shared.processes;
  if (on_gpu && group.shares_engine()) {
    if (!ranks.draft_devices.empty()) {
      return Unimplemented(
          "--draft_device: where several processes have GPUs the draft is beside the target");
    }
    TANDEM_ASSIGN_OR_RETURN(const int32_t gpus, NumPlaces(options.backend));
    TANDEM_RETURN_IF_ERROR(TakeRanksOfGpus(gpus, world.size, group, ranks));
  } else {
    ranks.target = RanksOfProcesses(world.size, on_gpu, ranks);
  }
  if (on_gpu) return shared.processes;
  ranks.first = group.rank;
  ranks.here = 1;
  options.backend.cpu.isa = group.isa;
  if (group.num_on_cores > 1) {
    options.backend.cpu = ShareOf(options.backend.cpu, group.num_on_cores, group.index_on_cores);
  }
  return shared.processes;
}

}  // namespace tandem::apps
