// What Engine::Create and Replicas::Create make engines with: their plan, and the parts of one.
// Used by the thread that creates them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/turns.h"
#include "runtime/engine.h"
#include "runtime/engine_parts.h"
#include "runtime/engine_plan.h"
#include "runtime/rank_agreement.h"

namespace tandem {

// The rank's device is the thread's from here on. A CPU has no such thing; binding would pin the
// caller to a core.
void EnterDevice(const EngineRank& rank);

// The plans of these ranks, of one engine or of several that will be alike: all have as many blocks
// as the rank with the fewest. Ranks whose memory is that of one device share what is free of it.
// Those of several processes plan with the least memory that any of them has.
Result<std::vector<EnginePlan>> PlanEngineRanks(const EngineOptions& asked,
                                                const std::vector<EngineRank>& ranks,
                                                const RankProcesses& processes = {});

// The parts of an engine on these ranks, each with its plan. Errors, lifetimes and `turns` as
// Engine::Create.
Result<EngineParts> MakeEngineParts(std::span<const EnginePlan> plans,
                                    const std::vector<EngineRank>& ranks, const Clock& clock,
                                    const std::shared_ptr<Turns>& turns,
                                    const RankProcesses& processes = {});

}  // namespace tandem
