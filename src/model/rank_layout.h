// RankLayout: which rank of an engine holds what of its two models. A plain value.
#pragma once

#include <cstdint>

#include "comm/stages.h"
#include "model/spec.h"

namespace tandem {

struct RankLayout {
  int64_t ranks = 1;   // of each stage of the target
  int64_t stages = 1;  // of the target; a draft has one
  // Ranks that the draft is split over. 1: whoever has it has all of it.
  int64_t draft_ranks = 1;
  // The first rank that has the draft, where only some have it: one of the target's ranks, or where
  // those end, which gives the draft ranks of its own. kOnEach: every stage has it, on one or on
  // all of its ranks.
  static constexpr int64_t kOnEach = -1;
  int64_t draft_first = kOnEach;
  // Experts are divided by their numbers (RankPlace::whole_experts).
  bool whole_experts = false;
  bool draft_whole_experts = false;

  int64_t target_count() const { return ranks * stages; }
  int64_t own_draft_ranks() const { return draft_first >= target_count() ? draft_ranks : 0; }
  int64_t count() const { return target_count() + own_draft_ranks(); }

  RankPlace TargetAt(int64_t rank) const {
    const bool apart = own_draft_ranks() > 0;
    if (rank >= target_count()) {
      return {.ranks = ranks,
              .stage = RankPlace::kNoStage,
              .stages = stages,
              .apart = apart,
              .whole_experts = whole_experts};
    }
    return {.rank = rank % ranks,
            .ranks = ranks,
            .stage = rank / ranks,
            .stages = stages,
            .apart = apart,
            .whole_experts = whole_experts};
  }
  RankPlace DraftAt(int64_t rank) const {
    if (draft_first == kOnEach) {
      return {
          .rank = rank % draft_ranks, .ranks = draft_ranks, .whole_experts = draft_whole_experts};
    }
    const bool has_it = rank >= draft_first && rank < draft_first + draft_ranks;
    return {.rank = has_it ? rank - draft_first : 0,
            .ranks = draft_ranks,
            .stage = has_it ? 0 : RankPlace::kNoStage,
            .apart = true,
            .first = draft_first,
            .whole_experts = draft_whole_experts};
  }
  // As the communicators of these ranks are made.
  Stages StagesOf() const {
    return {.count = static_cast<int>(stages), .apart = static_cast<int>(own_draft_ranks())};
  }
};

}  // namespace tandem
