#include "apps/models/find_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "ops/backend.h"

namespace tandem::apps {
namespace {

// Of each stage: one for each process where nobody has said how many.
int32_t RanksOfProcesses(int32_t num_processes, const RankOptions& ranks) {
  return ranks.target > 0 ? ranks.target : std::max(num_processes / ranks.stages, 1);
}

// On a CPU each process is a rank.
Status CheckCpuProcesses(const BackendOptions& backend, int32_t num_processes,
                         const RankOptions& ranks) {
  const int32_t target = RanksOfProcesses(num_processes, ranks);
  if (target * ranks.stages != num_processes) {
    const std::string stages =
        ranks.stages == 1 ? "" : fmt::format(" in each of {} stages", ranks.stages);
    return InvalidArgument(fmt::format(
        "--tensor_parallel_size {}{}: there are {} processes, and on a CPU each is a rank", target,
        stages, num_processes));
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
  }
  if (world.size == 1) return std::shared_ptr<ProcessGroup>();
  RankOptions& ranks = options.ranks;
  PrepareForRanks({.target = 2});  // asking for the GPUs is the first that is done with them
  const bool on_gpu = !IsOnCpu(options.backend);
  world.stages = ranks.stages;
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
    ranks.target = RanksOfProcesses(world.size, ranks);
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
    TANDEM_ASSIGN_OR_RETURN(const int32_t gpus, NumPlaces(options.backend));
    TANDEM_RETURN_IF_ERROR(TakeRanksOfGpus(gpus, world.size, group, ranks));
  } else {
    ranks.target = RanksOfProcesses(world.size, ranks);
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
