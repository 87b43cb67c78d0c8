// Every family split over tensor-parallel ranks and over stages, all of which are threads here: the
// logits are still those of the authors' own code, the same bits on each rank, and each rank holds
// its share of the weights. Stages alone change no bit.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <thread>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/family_cases.h"
#include "comm/in_process.h"
#include "model/rank_source.h"

namespace tandem {
namespace {

// In how many stages of how many ranks.
struct Ranks {
  int ranks = 1;
  int stages = 1;
  bool whole_experts = false;
};

// The tiny models that none of the numbers of ranks splits, and what a refusal names.
const std::map<std::string, std::string>& Refused() {
  static const std::map<std::string, std::string> refused = {
      {"deepseek_v3", "does not divide the intermediate size (20)"},
      {"gpt_oss", "does not divide the groups of columns with one scale of (32)"}};
  return refused;
}

class FamiliesRanksTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto file = SafetensorsFile::Open(FixturesFolder() / GetParam() / "cases.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(*file);
  }

  // The logits of each rank.
  std::vector<Logits> Run(const Ranks& split, const FamilyCase& one, DType dtype, size_t step) {
    const int size = split.ranks * split.stages;
    const auto comms = MakeInProcessRanks(size, {.count = split.stages});
    std::vector<Logits> logits(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Communicator& comm = *comms[static_cast<size_t>(rank)];
        logits[static_cast<size_t>(rank)] = RunRank(one, dtype, step, split.whole_experts, comm);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return logits;
  }

  Logits RunRank(const FamilyCase& one, DType dtype, size_t step, bool whole_experts,
                 Communicator& comm) {
    const auto length = static_cast<int32_t>(one.tokens.size());
    auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    auto reader = HfReader::Open(FixturesFolder() / GetParam(), dtype);
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    const Communicator& stage = comm.stage();
    const RankPlace place{.rank = stage.rank(),
                          .ranks = stage.size(),
                          .stage = comm.rank() / stage.size(),
                          .stages = comm.size() / stage.size(),
                          .whole_experts = whole_experts};
    const auto spec = RankSpec((*reader)->spec(), place);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    RankSource source(**reader, *spec);
    const auto weights = LoadWeights(source, **backend, length);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ((*weights)->bytes, WeightBytes(*spec, **backend, length));
    DecoderTestDriver driver(*weights, **backend, length, {}, &comm);
    return FeedCase(driver, **weights, one, step);
  }

  std::shared_ptr<const SafetensorsFile> file_;
};

TEST_P(FamiliesRanksTest, AgreesWithTheAuthorsCodeWithTheSameBitsOnEachRank) {
  const auto reader = HfReader::Open(FixturesFolder() / GetParam());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  int sizes = 0;
  std::string refusals;
  for (const int size : {2, 3, 4, 5}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    const auto spec = RankSpec((*reader)->spec(), {0, size});
    if (!spec.ok()) {
      refusals += spec.status().message() + "\n";
      continue;
    }
    ++sizes;
    for (const FamilyCase& one : CasesOf(*file_)) {
      SCOPED_TRACE(one.name);
      const std::vector<Logits> whole = Run({size}, one, DType::kF32, 0);
      EXPECT_LE(Difference(whole.front(), one.logits), 1e-3);
      for (const Logits& rank : whole) EXPECT_EQ(rank, whole.front());
      EXPECT_EQ(Run({size}, one, DType::kF32, 13), whole) << "in chunks";
      EXPECT_LE(Difference(Run({size}, one, DType::kF16, 0).front(), one.logits), 3e-2);
    }
  }
  const auto refused = Refused().find(GetParam());
  EXPECT_EQ(sizes > 0, refused == Refused().end()) << refusals;
  if (refused == Refused().end()) return;
  EXPECT_NE(refusals.find(refused->second), std::string::npos) << refusals;
}

// Also where their neurons cannot be divided; not evenly, where their number cannot.
TEST_P(FamiliesRanksTest, ExpertsCanBeDividedWhole) {
  const auto reader = HfReader::Open(FixturesFolder() / GetParam());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const ModelSpec& whole = (*reader)->spec();
  if (!whole.has_experts()) {  // nothing changes then
    const auto by_expert = RankSpec(whole, {.ranks = 2, .whole_experts = true});
    const auto by_neuron = RankSpec(whole, {.ranks = 2});
    ASSERT_EQ(by_expert.ok(), by_neuron.ok());
    if (!by_expert.ok()) return;
    EXPECT_EQ(by_expert->layers, by_neuron->layers);
    return;
  }
  int sizes = 0;
  for (const int size : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    const auto spec = RankSpec(whole, {.ranks = size, .whole_experts = true});
    if (!spec.ok()) continue;
    ++sizes;
    for (const FamilyCase& one : CasesOf(*file_)) {
      SCOPED_TRACE(one.name);
      const std::vector<Logits> logits = Run({size, 1, true}, one, DType::kF32, 0);
      EXPECT_LE(Difference(logits.front(), one.logits), 1e-3);
      for (const Logits& rank : logits) EXPECT_EQ(rank, logits.front());
      EXPECT_EQ(Run({size, 1, true}, one, DType::kF32, 13), logits) << "in chunks";
      if (whole.num_layers() < 2) continue;
      EXPECT_EQ(Run({size, 2, true}, one, DType::kF32, 0).front(), logits.front()) << "in stages";
    }
  }
  // Of one the dense layers cannot be divided either.
  EXPECT_EQ(sizes > 0, GetParam() != "deepseek_v3");
}

TEST_P(FamiliesRanksTest, StagesHaveTheSameBitsAsOne) {
  const auto reader = HfReader::Open(FixturesFolder() / GetParam());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const ModelSpec& whole = (*reader)->spec();
  const bool splits = RankSpec(whole, {0, 2}).ok();
  for (const Ranks& split : {Ranks{1, 2}, Ranks{1, 3}, Ranks{2, 2}}) {
    SCOPED_TRACE(std::to_string(split.stages) + " stages of " + std::to_string(split.ranks));
    const auto spec = RankSpec(whole, {0, split.ranks, 0, split.stages});
    if (split.stages > whole.num_layers()) {
      EXPECT_NE(spec.status().message().find("the number of layers"), std::string::npos);
      continue;
    }
    if (split.ranks > 1 && !splits) continue;
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    for (const FamilyCase& one : CasesOf(*file_)) {
      SCOPED_TRACE(one.name);
      for (const DType dtype : {DType::kF32, DType::kF16}) {
        const Logits expected = Run({split.ranks}, one, dtype, 0).front();
        const std::vector<Logits> stages = Run(split, one, dtype, 0);
        for (const Logits& rank : stages) EXPECT_EQ(rank, expected);
        EXPECT_EQ(Run(split, one, dtype, 13), stages) << "in chunks";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, FamiliesRanksTest, ::testing::ValuesIn(FamilyFixtures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem
