// The processes of a session: which of them this one is, and of how many, as the command line, Open
// MPI or a Kubernetes LeaderWorkerSet says. Each is one rank of the model on a CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/bound_options.h"
#include "base/status.h"
#include "comm/processes/rendezvous.h"

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

// This process among those of its model; of size 1 where there are no others. INVALID_ARGUMENT
// names the option that is missing or wrong.
Result<RankWorld> WorldOf(const ProcessOptions& options, const Environ& environ);

}  // namespace tandem::apps
