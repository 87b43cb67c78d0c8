// What Engine::Create and Replicas::Create make engines with: their plan, and the parts of one.
// Used by the thread that creates them.
#pragma once

#include <memory>
#include <vector>

#include "base/turns.h"
#include "runtime/engine.h"
#include "runtime/engine_parts.h"
#include "runtime/engine_plan.h"

namespace tandem {

// The rank's device is the thread's from here on. A CPU has no such thing; binding would pin the
// caller to a core.
void EnterDevice(const EngineRank& rank);

// One plan for all ranks, of one engine or of several that will be alike: that of the rank with the
// fewest blocks. Ranks whose memory is that of one device share what is free of it.
Result<EnginePlan> PlanRanks(const EngineOptions& asked, const std::vector<EngineRank>& ranks);

// The parts of an engine on these ranks. Errors, lifetimes and `turns` as Engine::Create.
Result<EngineParts> MakeEngineParts(const EnginePlan& plan, const std::vector<EngineRank>& ranks,
                                    const Clock& clock, const std::shared_ptr<Turns>& turns);

}  // namespace tandem
