// The processes of a session: which of them this one is, and of how many, as the command line, Open
// MPI or a Kubernetes LeaderWorkerSet says. On a CPU each is one rank of the model. On GPUs the
// first one has all ranks of its machine, and the others there wait until it ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

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

// This process among those of its model; of size 1 where there are no others. INVALID_ARGUMENT
// names the option that is missing or wrong.
Result<RankWorld> WorldOf(const ProcessOptions& options, const Environ& environ);

// The others of a session, once all are there. Made and used by the thread of the session.
struct ProcessGroup {
  int32_t rank = 0;
  bool idle = false;                    // not the first one, on GPUs
  std::shared_ptr<Communicator> ranks;  // of an engine; null on GPUs
  RankProcesses processes;
  // The processes on this one's cores, itself included, and how many of them come before it.
  int num_on_cores = 1;
  int index_on_cores = 0;
  std::string isa;  // that all compute with; on CPUs
};

// Waits for the others, up to ten minutes. `isa`: the instruction set that this process was asked
// to use. FAILED_PRECONDITION for GPUs of several machines, and where some processes have a GPU and
// some have none.
Result<std::unique_ptr<ProcessGroup>> JoinProcesses(const RankWorld& world, bool on_gpu,
                                                    const std::string& isa);

// A text from which it is seen whether two folders hold the same model: names and sizes of its
// files, and samples of their bytes. NOT_FOUND and the like when they cannot be read.
Result<std::string> SampleModel(const std::filesystem::path& folder);

}  // namespace tandem::apps
