// Models of several ranks for engine tests: on the CPU threads, else each on a GPU of its own. Test
// code, any thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/cuda/cuda_ranks.h"
#include "comm/in_process.h"
#include "model/rank_source.h"
#include "runtime/testing/family_engine.h"

namespace tandem {

// How many ranks a model is split over: those of a stage, and stages.
struct RankSplit {
  int ranks = 1;
  int stages = 1;
  int count() const { return ranks * stages; }
  RankPlace PlaceOf(int rank) const { return {rank % ranks, ranks, rank / ranks, stages}; }
};
inline std::string NameOf(const RankSplit& split) {
  return "Tp" + std::to_string(split.ranks) + "Pp" + std::to_string(split.stages);
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
                                                            int stages) {
  if (!TestOnCuda()) return MakeInProcessRanks(static_cast<int>(models.backends.size()), stages);
  std::vector<ops::Backend*> gpus;
  for (const auto& backend : models.backends) gpus.push_back(backend.get());
  auto comms = MakeCudaRanks(gpus, stages);
  EXPECT_TRUE(comms.ok()) << comms.status().message();
  return std::move(*comms);
}

// The model as target, and in another type as draft: whole on every rank, or split over the ranks
// of each stage.
inline RankedModels LoadRanks(const std::string& name, const RankSplit& split, bool split_draft,
                              int64_t max_seq_len) {
  RankedModels models;
  for (int rank = 0; rank < split.count(); ++rank) {
    const RankPlace place = split.PlaceOf(rank);
    const RankPlace of_draft = split_draft ? RankPlace{place.rank, place.ranks} : RankPlace{};
    ops::Backend& backend = *models.backends.emplace_back(MakeRankBackend(rank));
    EngineRank& one = models.ranks.emplace_back();
    one.backend = &backend;
    one.target = LoadRank(name, FamilyTargetType(), place, backend, max_seq_len);
    one.draft = LoadRank(name, kFamilyDraftType, of_draft, backend, max_seq_len);
  }
  auto comms = MakeComms(models, split.stages);
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    models.ranks[rank].ranks = std::move(comms[rank]);
  }
  return models;
}

// As many GPUs as ranks, where the ranks are GPUs.
inline bool HasRanks(int size) { return !TestOnCuda() || ops::NumCudaDevices() >= size; }

}  // namespace tandem
