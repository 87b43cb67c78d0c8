// The replicas of a session: whole models beside each other, each with ranks of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/devices.h"
#include "apps/models/ranks.h"
#include "base/bound_options.h"
#include "ops/backend.h"

namespace tandem::apps {

struct ReplicaOptions {
  int32_t count = 1;
  // Of all ranks, replica after replica, where a list names them; empty: those after each other.
  std::vector<std::string> devices = {};
  // Likewise of the drafts' ranks.
  std::vector<std::string> draft_devices = {};
};

const BoundOptions<ReplicaOptions>& ReplicaOptionRows();

// The machine of replica `replica` alone: on a CPU its share of the threads and cores.
BackendOptions BackendOfReplica(const BackendOptions& options, const ReplicaOptions& replicas,
                                int32_t replica);

// Divides the devices that were named for ranks, if several were, among the replicas, and so those
// named for drafts; the ranks keep those of the first. INVALID_ARGUMENT where that is not possible.
Status ShareDevices(RankOptions& ranks, ReplicaOptions& replicas);

// Whether the drafts of all replicas are where PlaceDraft has put the first one's, which `ranks`
// tell, each on its own devices. INVALID_ARGUMENT names the replica of which that is not so.
Status CheckDraftPlaces(const BackendOptions& options, const ReplicaOptions& replicas,
                        const RankOptions& ranks);

// Of each replica the backends of its ranks. On GPUs the first replica begins with the one that the
// options name, and each further one with the GPU after those of the one before it.
Result<std::vector<std::vector<std::shared_ptr<ops::Backend>>>> MakeReplicaBackends(
    const BackendOptions& options, const ReplicaOptions& replicas, const RankOptions& ranks,
    SharedDevices& devices);

}  // namespace tandem::apps
