// The ranks of a session: on how many devices its models lie.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/devices.h"
#include "base/bound_options.h"
#include "comm/communicator.h"
#include "model/spec.h"
#include "ops/backend.h"

namespace tandem::apps {

struct RankOptions {
  int32_t target = 0;      // ranks that the target is split over; 0: ChooseRanks decides
  int32_t draft = 0;       // the same of the draft, or 1: whole on each rank; 0: split if it can be
  int32_t world_size = 1;  // of a launch through MPI, as an old command line says
  // Of the ranks in their order (DevicesOf); one: the first, and on GPUs those after it.
  std::vector<std::string> devices = {};
  // The ranks of this process; 0: all.
  int32_t first = 0;
  int32_t here = 0;

  int32_t num_here() const { return here > 0 ? here : target; }
};

const BoundOptions<RankOptions>& RankOptionRows();

// Before anything uses a GPU, where there may be several ranks.
void PrepareForRanks(const RankOptions& ranks);
// The options of the backend of rank `rank`: on a CPU its share of the threads and cores.
BackendOptions BackendOfRank(const BackendOptions& options, const RankOptions& ranks, int32_t rank);
// One for each rank of this process, `first` being the first one's, on the devices of the options.
// The number of ranks is settled.
Result<std::vector<std::shared_ptr<ops::Backend>>> MakeRankBackends(
    const BackendOptions& options, const RankOptions& ranks, std::shared_ptr<ops::Backend> first);
// Those of one engine on these backends; null where there is one.
Result<std::vector<std::shared_ptr<Communicator>>> MakeCommunicators(
    const std::vector<std::shared_ptr<ops::Backend>>& backends);

// The parts of a model that the ranks hold, that of rank 0 first; all of it where it is not split.
// Errors name the option.
Result<std::vector<ModelSpec>> TargetParts(const ModelSpec& spec, const RankOptions& ranks);
Result<std::vector<ModelSpec>> DraftParts(const ModelSpec& spec, const RankOptions& ranks);

}  // namespace tandem::apps
