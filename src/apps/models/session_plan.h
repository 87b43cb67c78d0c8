// What the ranks of a session would take, before anything is loaded. Used by session.cc;
// PlanSession of session.h shows it to people.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/models/opening.h"
#include "runtime/engine_plan.h"

namespace tandem::apps {

struct RankPlans {
  std::vector<EnginePlan> plans;      // of each rank of this process, in one replica
  std::vector<int64_t> weight_bytes;  // of both models, of each rank
};
// `store`: weights that are loaded already take nothing. FAILED_PRECONDITION when the models or
// their cache do not fit into free memory.
Result<RankPlans> PlansOf(const Opening& opening, const WeightStore& store);

}  // namespace tandem::apps
