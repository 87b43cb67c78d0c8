// `tandem plan`: the effective configuration and its use of memory. Loads no weights.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/verbs.h"
#include "apps/models/session.h"

namespace tandem::apps {
namespace {

// The devices of each replica, if there are several.
void SayReplicas(const SessionPlan& plan, nlohmann::ordered_json& json, const Console& console) {
  if (plan.backends.size() == 1) return;
  console.Say(fmt::format("replicas      {}, each as below", plan.backends.size()));
  for (const auto& ranks : plan.backends) {
    std::vector<std::string> devices;
    for (const auto& rank : ranks) devices.push_back(rank->Describe());
    console.Say(fmt::format("  {:<11} {}", json["replicas"].size(), fmt::join(devices, "; ")));
    json["replicas"].push_back({{"devices", devices}});
  }
}

Status Run(const OptionValues& options, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const SessionPlan plan, PlanSession(options));
  const std::string backend = plan.backends.front().front()->Describe();
  const EngineOptions& engine = plan.engine.options;
  const MemoryPlan& memory = plan.engine.memory;
  console.Say(fmt::format("backend       {}", backend));
  console.Say(fmt::format("target        {}", plan.target));
  console.Say(fmt::format("draft         {}", plan.draft.empty() ? "none" : plan.draft));
  if (!plan.ranks_why.empty()) console.Say(fmt::format("ranks         {}", plan.ranks_why));
  console.Say(fmt::format("sequences     {} a step, up to {} tokens each", engine.max_batch_size,
                          engine.max_seq_len));
  console.Say(fmt::format("cache blocks  {} of {} tokens", memory.num_blocks, engine.block_tokens));
  nlohmann::ordered_json json = {{"backend", backend},
                                 {"target", plan.target},
                                 {"max_batch_size", engine.max_batch_size},
                                 {"max_seq_len", engine.max_seq_len},
                                 {"cache_blocks", memory.num_blocks},
                                 {"block_tokens", engine.block_tokens},
                                 {"memory", nlohmann::ordered_json::array()}};
  if (!plan.draft.empty()) json["draft"] = plan.draft;
  SayReplicas(plan, json, console);
  for (const MemoryLine& line : memory.lines) {
    console.Say(ShowMemoryLine(line));
    nlohmann::ordered_json& row = json["memory"].emplace_back();
    row = {{"what", line.what}, {"bytes", line.bytes}, {"option", line.option}};
    if (!line.note.empty()) row["note"] = line.note;
  }
  for (const std::string& line :
       plan.ranks.empty() ? std::vector<std::string>() : ShowRanks(plan.ranks)) {
    console.Say(line);
  }
  for (const RankUse& rank : plan.ranks) {
    json["ranks"].push_back({{"device", rank.device},
                             {"weight_bytes", rank.weights},
                             {"cache_bytes", rank.cache},
                             {"workspace_bytes", rank.workspace},
                             {"free_bytes", rank.free}});
  }
  console.Result(json);
  return {};
}

}  // namespace

Command PlanCommand() {
  return {.name = "plan",
          .summary = "Show what would run on this machine and how it would use memory",
          .examples = "  tandem plan MODEL DRAFT --max_batch_size 128\n",
          .options = SessionOptionRows(),
          .run = Run};
}

}  // namespace tandem::apps
