// How the processes of one model find each other when they start: rank 0 listens at an address that
// all know, the others connect to it, and it tells each of them where the others are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/communicator.h"
#include "comm/processes/rank_link.h"
#include "comm/stages.h"

namespace tandem {

// A process of a model among all of them.
struct RankWorld {
  int rank = 0;
  int size = 1;
  Stages stages;        // of the communicator: what all are told alike on their command lines
  std::string address;  // that rank 0 listens at: socket.h has its forms
  std::string secret;   // that all of them know; sent as it is
  std::string version;  // of the program: theirs must be the same
  // Names of the GPUs that this process has, without spaces; processes of one machine that have the
  // same ones share them: the first of those has ranks, and the others only wait. Empty where each
  // process is a rank.
  std::string gpus = {};
};

struct JoinedRanks {
  // The processes that have ranks, by their numbers in the world, 0 first.
  std::vector<int> with_ranks;
  // This process among those; null if it only waits. In the world's stages if those divide the
  // processes with ranks, otherwise in one.
  std::unique_ptr<Communicator> ranks;
  // Of rank 0: to all others, in their order; of another: to rank 0.
  std::vector<std::unique_ptr<RankLink>> links;
  int on_machine = 1;  // processes of the same machine, this one included
  // The processes that run on the same cores of the same machine, this one included, and how many
  // of them come before it.
  int num_on_cores = 1;
  int index_on_cores = 0;
};

// Waits until all are there, at most `patience`; DEADLINE_EXCEEDED names those that are missing.
// UNAUTHENTICATED, INVALID_ARGUMENT and FAILED_PRECONDITION say what another process was started
// with. The log says every few seconds who is waited for.
Result<JoinedRanks> JoinRanks(const RankWorld& world, Nanos patience);

}  // namespace tandem
