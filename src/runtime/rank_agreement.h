// What the processes of an engine agree on before it runs: each plans by itself, and all must come
// to one plan. Called by each process's thread that makes the engine, in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/processes/rank_link.h"
#include "runtime/engine_plan.h"

namespace tandem {

// A process of an engine and the others.
struct RankProcesses {
  // Of the process that leads: to the others that have ranks, in their order. Of another: to the
  // one that leads. None: the engine has one process.
  std::vector<std::shared_ptr<RankLink>> links;
  // Those on this machine, this one included: they share its memory.
  int on_machine = 1;

  bool leads() const { return links.empty() || links.front()->peer() != 0; }
};

// Every value becomes the least that any process has at that place. UNAVAILABLE when one has left,
// FAILED_PRECONDITION when one has another number of values.
Status TakeLeast(std::span<int64_t> values, const RankProcesses& processes);

// FAILED_PRECONDITION with the message `otherwise` when the processes do not all give the same
// text.
Status AgreeOnText(std::string_view text, std::string_view otherwise,
                   const RankProcesses& processes);

// The same for what every step depends on, when the blocks are agreed on. `draft`: null without
// one.
Status AgreeOnPlan(const EnginePlan& plan, const ModelSpec& target, const ModelSpec* draft,
                   const RankProcesses& processes);

}  // namespace tandem
