// `tandem plan`: what would run here and where its memory would go.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/session.h"
#include "apps/verbs.h"

namespace tandem::apps {
namespace {

Status Run(const OptionValues& options, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(options, console));
  const Engine& engine = *session->engine;
  console.Say(fmt::format("backend       {}", session->backend->Describe()));
  console.Say(fmt::format("target        {}", session->target.name));
  console.Say(fmt::format("draft         {}", session->draft ? session->draft->name : "none"));
  console.Say(fmt::format("sequences     {} a step, up to {} tokens each",
                          engine.options().max_batch_size, engine.max_seq_len()));
  console.Say(fmt::format("cache blocks  {} of {} tokens", engine.Stats().kv.total_blocks,
                          engine.options().block_tokens));
  nlohmann::ordered_json json = {{"backend", session->backend->Describe()},
                                 {"target", session->target.name},
                                 {"max_batch_size", engine.options().max_batch_size},
                                 {"max_seq_len", engine.max_seq_len()},
                                 {"cache_blocks", engine.Stats().kv.total_blocks},
                                 {"block_tokens", engine.options().block_tokens},
                                 {"memory", nlohmann::ordered_json::array()}};
  if (session->draft) json["draft"] = session->draft->name;
  for (const MemoryLine& line : engine.memory_plan()) {
    console.Say(fmt::format("  {:34} {:>10}  {}", line.what, FormatBytes(line.bytes),
                            line.option.empty() ? "" : "--" + line.option));
    json["memory"].push_back({{"what", line.what}, {"bytes", line.bytes}, {"option", line.option}});
  }
  console.Result(json.dump());
  return {};
}

}  // namespace

Command PlanCommand() {
  return {.name = "plan",
          .summary = "Show what would run on this machine and where its memory would go",
          .examples = "  tandem plan MODEL DRAFT --max_batch_size 128\n",
          .positionals = SessionPositionals(),
          .options = SessionOptionRows(),
          .run = Run};
}

}  // namespace tandem::apps
