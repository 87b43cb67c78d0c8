// Models of several ranks for engine tests: on the CPU threads, else each on a GPU of its own. Test
// code, any thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/cuda/cuda_ranks.h"
#include "comm/in_process.h"
#include "model/rank_layout.h"
#include "model/rank_source.h"
#include "runtime/testing/family_engine.h"

namespace tandem {

// The draft of a RankLayout is whole on each rank. These put it elsewhere.
// It is split over the ranks of each stage.
inline RankLayout WithSplitDraft(RankLayout layout) {
  layout.draft_ranks = layout.ranks;
  return layout;
}
// One of the target's ranks has it alone.
inline RankLayout WithDraftOn(RankLayout layout, int64_t rank) {
  layout.draft_first = rank;
  return layout;
}
// It has ranks of its own.
inline RankLayout WithOwnDraft(RankLayout layout, int64_t draft_ranks) {
  layout.draft_ranks = draft_ranks;
  layout.draft_first = layout.target_count();
  return layout;
}
// Each rank has some experts, whole.
inline RankLayout ByExpert(RankLayout layout) {
  layout.whole_experts = layout.draft_whole_experts = true;
  return layout;
}
// "Tp2Pp1", and "Tp2Pp1Draft1From2" with a draft that only rank 2 has.
inline std::string NameOf(const RankLayout& layout) {
  std::string name = "Tp" + std::to_string(layout.ranks) + "Pp" + std::to_string(layout.stages);
  if (layout.whole_experts) name += "ByExpert";
  if (layout.draft_first == RankLayout::kOnEach) return name;
  return name + "Draft" + std::to_string(layout.draft_ranks) + "From" +
         std::to_string(layout.draft_first);
}

// A model's weights on every rank, or its parts of them.
struct RankedModels {
  std::vector<std::unique_ptr<ops::Backend>> backends;
  std::vector<EngineRank> ranks;
};

inline EngineModel LoadRank(const std::string& name, DType dtype, const RankPlace& place,
                            ops::Backend& backend, int64_t max_seq_len) {
  const auto reader = HfReader::Open(FixturesFolder() / name, dtype);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  const auto spec = RankSpec((*reader)->spec(), place);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  RankSource source(**reader, *spec);
  auto weights = LoadWeights(source, backend, max_seq_len);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  return {*weights, name};
}

inline std::unique_ptr<ops::Backend> MakeRankBackend(int rank) {
  auto backend = TestOnCuda() ? ops::MakeCudaBackend({.device = rank, .batch_invariant = true})
                              : ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false});
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  return std::move(*backend);
}

inline std::vector<std::unique_ptr<Communicator>> MakeComms(const RankedModels& models,
                                                            const Stages& stages) {
  if (!TestOnCuda()) return MakeInProcessRanks(static_cast<int>(models.backends.size()), stages);
  std::vector<ops::Backend*> gpus;
  for (const auto& backend : models.backends) gpus.push_back(backend.get());
  auto comms = MakeCudaRanks(gpus, stages);
  EXPECT_TRUE(comms.ok()) << comms.status().message();
  return std::move(*comms);
}

// The model as target, and in another type as draft.
inline RankedModels LoadRanks(const std::string& name, const RankLayout& layout,
                              int64_t max_seq_len) {
  RankedModels models;
  for (int rank = 0; rank < layout.count(); ++rank) {
    ops::Backend& backend = *models.backends.emplace_back(MakeRankBackend(rank));
    EngineRank& one = models.ranks.emplace_back();
    one.backend = &backend;
    one.target = LoadRank(name, FamilyTargetType(), layout.TargetAt(rank), backend, max_seq_len);
    one.draft = LoadRank(name, kFamilyDraftType, layout.DraftAt(rank), backend, max_seq_len);
  }
  auto comms = MakeComms(models, layout.StagesOf());
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    models.ranks[rank].ranks = std::move(comms[rank]);
  }
  return models;
}

// As many GPUs as ranks, where the ranks are GPUs.
inline bool HasRanks(int64_t size) { return !TestOnCuda() || ops::NumCudaDevices() >= size; }

}  // namespace tandem
