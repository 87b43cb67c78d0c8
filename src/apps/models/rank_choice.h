// How many ranks a model, or each of its stages, runs on, and how they divide its experts, where
// the options leave it open. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "apps/models/ranks.h"
#include "base/status.h"
#include "model/sharding.h"
#include "model/spec.h"

namespace tandem::apps {

// What the choice depends on besides the options.
struct RankFacts {
  Sharding built = {};              // how the target's files are split
  const ModelSpec* spec = nullptr;  // of the target; null: not known, so taken to be divisible
  int32_t places = 1;               // ranks for which there are GPUs, or cores
  bool on_cpu = false;
};

struct RankChoice {
  int32_t ranks = 1;        // of each stage
  std::string why;          // "the model runs on 2 ranks, ..."; empty: nothing was left open
  bool by_default = false;  // nobody asked for this number, so one rank will do as well
  std::string warning;      // what was asked for and is not so; empty: nothing
};

// Whether each of so many ranks has some experts of the model, whole, instead of a share of every
// one: if that is asked for (RankOptions::experts), or if nothing is and only that is possible.
bool HasWholeExperts(const ModelSpec& spec, int64_t ranks, int32_t asked);

// A number that is given counts, then one rank for each device of a list, then what the model was
// built for, then --world_size; lists and --world_size are of the ranks of all stages. A number
// that is not given, and which the places or the model do not allow, becomes one. INVALID_ARGUMENT
// for a given number that differs from a list's.
Result<RankChoice> ChooseRanks(const RankOptions& options, const RankFacts& facts);

}  // namespace tandem::apps
