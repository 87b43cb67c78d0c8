// The ranks of a session: on how many devices its models lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/devices.h"
#include "base/bound_options.h"
#include "comm/communicator.h"
#include "model/rank_layout.h"
#include "model/spec.h"
#include "ops/backend.h"

namespace tandem::apps {

struct RankOptions {
  // Ranks of a stage, over which its layers are split; 0: ChooseRanks decides.
  int32_t target = 0;
  int32_t stages = 1;  // of the target, each of some of the layers
  // Ranks of each stage that the draft is split over, or 1: whole on each rank; 0: split if it can
  // be. It has no stages.
  int32_t draft = 0;
  int32_t world_size = 1;  // of a launch through MPI, as an old command line says
  // 0: a share of every expert on each rank if the sizes divide, otherwise whole experts; 1:
  // shares; the ranks of a stage: whole experts. Nothing else is valid.
  int32_t experts = 0;
  // Where the draft is, if not beside the target: "cuda:2", or several between commas.
  std::string draft_device = {};
  // Of the target's ranks in their order (ListDevices); one: the first, and on GPUs those after it.
  std::vector<std::string> devices = {};
  // Of the ranks that have the draft, where not all do; then, once it is settled (PlaceDraft), the
  // first of these ranks.
  std::vector<std::string> draft_devices = {};
  int32_t draft_first = static_cast<int32_t>(RankLayout::kOnEach);
  // The ranks of this process; 0: all.
  int32_t first = 0;
  int32_t here = 0;

  // Of the target in all processes; one for each stage while nothing is settled.
  int32_t num_target() const { return std::max(target, 1) * stages; }
  // With those of the draft alone.
  int32_t count() const { return num_target() + num_own_draft(); }
  int32_t num_own_draft() const {
    return draft_first >= num_target() ? static_cast<int32_t>(draft_devices.size()) : 0;
  }
  int32_t num_here() const { return here > 0 ? here : count(); }
  // As the communicators of the ranks are made.
  Stages StagesOf() const { return {.count = stages, .apart = num_own_draft()}; }
};

const BoundOptions<RankOptions>& RankOptionRows();

// The numbers of the target's GPUs: those listed, or as many from the first on.
Result<std::vector<int>> TargetGpus(const RankOptions& ranks);
// Where the draft is, now that the target's ranks are known: on one of their devices, or on devices
// that it has alone. On a CPU it always has ranks of its own. INVALID_ARGUMENT if only some of its
// GPUs are the target's.
Status PlaceDraft(const BackendOptions& backend, RankOptions& ranks);

// The options of the backend of rank `rank`: on a CPU its share of the threads and cores.
BackendOptions BackendOfRank(const BackendOptions& options, const RankOptions& ranks, int32_t rank);
// One for each rank of this process, `first` being the first one's, on the devices of the options.
// The number of ranks is settled.
Result<std::vector<std::shared_ptr<ops::Backend>>> MakeRankBackends(
    const BackendOptions& options, const RankOptions& ranks, std::shared_ptr<ops::Backend> first);
// The communicators of one engine, one for each backend. With a single backend there is no
// communicator: null.
Result<std::vector<std::shared_ptr<Communicator>>> MakeCommunicators(
    const std::vector<std::shared_ptr<ops::Backend>>& backends, const Stages& stages);
// Likewise for an engine whose ranks other processes have too, in `stages` stages of equal size.
// `processes`: this one among them; on a CPU it is the rank's communicator itself.
Result<std::vector<std::shared_ptr<Communicator>>> MakeCommunicatorsOfProcesses(
    const std::vector<std::shared_ptr<ops::Backend>>& backends,
    std::shared_ptr<Communicator> processes, int32_t stages);

// The parts of a model that the ranks hold, that of rank 0 first and those of the first stage
// before those of the next; all of it where it is not split, and no layer where it is elsewhere.
// Errors name the option.
Result<std::vector<ModelSpec>> TargetParts(const ModelSpec& spec, const RankOptions& ranks);
Result<std::vector<ModelSpec>> DraftParts(const ModelSpec& spec, const RankOptions& ranks);

}  // namespace tandem::apps
