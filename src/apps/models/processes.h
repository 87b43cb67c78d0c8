// The processes of a session: which of them this one is, and of how many, as the command line, Open
// MPI or a Kubernetes LeaderWorkerSet says. On a CPU each is one rank of the model. Of those that
// have the same GPUs the first one has the ranks, one for each GPU, and the others wait until it
// ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/ranks.h"
#include "base/bound_options.h"
#include "base/status.h"
#include "comm/processes/rendezvous.h"
#include "runtime/rank_agreement.h"

namespace tandem::apps {

struct ProcessOptions {
  int32_t count = 0;           // 0: as the launcher of this process says, else 1
  int32_t rank = -1;           // of this process; -1: likewise
  std::string leader_address;  // HOST or HOST:PORT of rank 0
  std::string secret_file;
};

const BoundOptions<ProcessOptions>& ProcessOptionRows();

// The value of an environment variable; null without it.
using Environ = std::function<const char*(const char* name)>;

// How many processes the model has.
int32_t NumProcesses(const ProcessOptions& options, const Environ& environ);

// INVALID_ARGUMENT where there is no process of the number that this one is given. -1: it is given
// none.
Status CheckProcessRank(int32_t rank, int32_t num_processes);

// This process among those of its model; of size 1 where there are no others. INVALID_ARGUMENT
// names the option, or the launcher's variable, that is missing or wrong.
Result<RankWorld> WorldOf(const ProcessOptions& options, const Environ& environ);

// The others of a session, once all are there. Made and used by the thread of the session.
struct ProcessGroup {
  int32_t rank = 0;
  // The processes that have ranks, and which of them this one is; -1: it only waits for the end.
  int32_t num_with_ranks = 1;
  int32_t index = 0;
  // This process among those; null where there is one, and once an engine has it.
  std::shared_ptr<Communicator> communicator;
  RankProcesses peers;                             // likewise: without links where there is one
  std::vector<std::shared_ptr<RankLink>> waiting;  // to those that only wait; of one: to process 0
  // The processes on this one's cores, itself included, and how many of them come before it.
  int num_on_cores = 1;
  int index_on_cores = 0;
  std::string isa;  // that all compute with; on CPUs

  bool waits() const { return index < 0; }
  bool shares_engine() const { return num_with_ranks > 1; }
};

// Waits for the others, up to ten minutes. `isa`: the instruction set that this process was asked
// to use. UNAVAILABLE where this process should use a GPU and can use none. FAILED_PRECONDITION
// where some processes have a GPU and some have none, and, where several have GPUs of their own,
// without NCCL, or with different kinds of GPUs or versions of NCCL.
Result<std::unique_ptr<ProcessGroup>> JoinProcesses(RankWorld world, bool on_gpu,
                                                    const std::string& isa);

// Where several processes have GPUs of their own: which ranks those of this process are.
// `num_gpus`: that it can use, by its --device; `num_processes`: that were started. A number of
// ranks that nobody has asked for (0) becomes one for each process, or where they do not share GPUs
// one for each GPU, as many as the process with the fewest has. INVALID_ARGUMENT when the ranks or
// stages cannot be divided among the processes.
Status TakeRanksOfGpus(int32_t num_gpus, int32_t num_processes, const ProcessGroup& group,
                       RankOptions& ranks);

// A text from which it is seen whether two folders hold the same model: names and sizes of its
// files, and samples of their bytes. NOT_FOUND and the like when they cannot be read.
Result<std::string> SampleModel(const std::filesystem::path& folder);

}  // namespace tandem::apps
