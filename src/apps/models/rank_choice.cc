#include "apps/models/rank_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tandem::apps {
namespace {

std::string Ranks(int64_t ranks) {
  return ranks == 1 ? std::string("one rank") : fmt::format("{} ranks", ranks);
}

// A number of ranks that follows from something else than the option.
struct Wish {
  int64_t ranks = 1;
  std::string why;  // "as its files were built"
};

Wish WishOf(const RankOptions& options, const RankFacts& facts) {
  if (options.devices.size() > 1) {
    return {static_cast<int64_t>(options.devices.size()) / options.stages, "one for each device"};
  }
  if (facts.built.tp_size > 1) return {facts.built.tp_size, "as its files were built"};
  if (options.world_size > 1 && options.world_size % options.stages == 0) {
    return {options.world_size / options.stages, "as --world_size says"};
  }
  return {};
}

// Devices that are named are never left unused, but for parts of a CPU, which any rank can use.
bool IsFirm(const RankOptions& options, const RankFacts& facts) {
  return options.devices.size() > 1 && !facts.on_cpu;
}

RankChoice Grant(const RankOptions& options, const RankFacts& facts) {
  const Wish wish = WishOf(options, facts);
  RankChoice choice;
  if (wish.ranks == 1) return choice;
  int64_t ranks = wish.ranks;
  std::string limit;
  choice.by_default = !IsFirm(options, facts);
  if (choice.by_default && ranks * options.stages > facts.places) {
    limit = fmt::format(": there {} {} {}{}", facts.places == 1 ? "is" : "are", facts.places,
                        facts.on_cpu ? "core" : "GPU", facts.places == 1 ? "" : "s");
    ranks = options.devices.size() > 1 ? std::max(facts.places / options.stages, 1) : 1;
  }
  if (ranks > 1 && facts.spec != nullptr && choice.by_default) {
    const RankPlace place{.ranks = ranks,
                          .whole_experts = HasWholeExperts(*facts.spec, ranks, options.experts)};
    const Result<ModelSpec> part = RankSpec(*facts.spec, place);
    if (!part.ok()) {
      choice.warning = fmt::format("the model runs on one rank, not on {}, {}: {}", Ranks(ranks),
                                   wish.why, part.status().message());
      return choice;
    }
  }
  choice.ranks = static_cast<int32_t>(ranks);
  const std::string instead = limit.empty() ? "" : fmt::format(" instead of {}", wish.ranks);
  const std::string_view where = options.stages == 1 ? "the model" : "each stage of the model";
  choice.why = fmt::format("{} runs on {}{}, {}{}", where, Ranks(ranks), instead, wish.why, limit);
  choice.why += " (--tensor_parallel_size)";
  return choice;
}

}  // namespace

bool HasWholeExperts(const ModelSpec& spec, int64_t ranks, int32_t asked) {
  if (!spec.has_experts() || ranks == 1 || asked == 1) return false;
  return asked > 1 || (!RankSpec(spec, {.ranks = ranks}).ok() &&
                       RankSpec(spec, {.ranks = ranks, .whole_experts = true}).ok());
}

Result<RankChoice> ChooseRanks(const RankOptions& options, const RankFacts& facts) {
  RankChoice choice;
  const auto listed = static_cast<int64_t>(options.devices.size());
  // A process may have some of the stages, or some ranks of one.
  if (listed > 1 && options.here == 0 && listed % options.stages != 0) {
    return InvalidArgument(
        fmt::format("--pipeline_parallel_size {}: --device names {} devices; name as many for each "
                    "stage, or only the first",
                    options.stages, listed));
  }
  if (options.target > 0) {
    if (listed > 1 && listed != options.num_here()) {
      return InvalidArgument(
          fmt::format("--tensor_parallel_size {}: --device names {} devices; name one for each "
                      "rank of this process, or only the first",
                      options.target, listed));
    }
    choice.ranks = options.target;
  } else {
    choice = Grant(options, facts);
  }
  // Stages of a pipeline are ranks of a launch too.
  const int32_t all = choice.ranks * options.stages;
  if (options.world_size > 1 && options.world_size != all &&
      options.world_size != facts.built.num_files() && choice.warning.empty()) {
    choice.warning =
        fmt::format("--world_size {}: the model runs on {}", options.world_size, Ranks(all));
  }
  return choice;
}

}  // namespace tandem::apps
