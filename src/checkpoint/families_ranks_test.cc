// Every family split over tensor-parallel ranks, which are threads here: the logits are still those
// of the authors' own code, the same bits on each rank, and each rank holds its share of the
// weights.
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

// The tiny models that none of the numbers of ranks splits, and what a refusal names.
const std::map<std::string, std::string>& Refused() {
  static const std::map<std::string, std::string> refused = {
      {"deepseek_v3", "does not divide the intermediate size (20)"},
      {"gpt_oss", "does not divide the groups of columns with one scale of (32)"},
      {"olmo2", "norms all heads together"},
      {"olmo3", "norms all heads together"}};
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
  std::vector<Logits> Run(int size, const FamilyCase& one, DType dtype, size_t step) {
    const auto comms = MakeInProcessRanks(size);
    std::vector<Logits> logits(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Communicator& comm = *comms[static_cast<size_t>(rank)];
        logits[static_cast<size_t>(rank)] = RunRank(one, dtype, step, comm);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return logits;
  }

  Logits RunRank(const FamilyCase& one, DType dtype, size_t step, Communicator& comm) {
    const auto length = static_cast<int32_t>(one.tokens.size());
    auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    auto reader = HfReader::Open(FixturesFolder() / GetParam(), dtype);
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    const auto spec = RankSpec((*reader)->spec(), {comm.rank(), comm.size()});
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
      const std::vector<Logits> whole = Run(size, one, DType::kF32, 0);
      EXPECT_LE(Difference(whole.front(), one.logits), 1e-3);
      for (const Logits& rank : whole) EXPECT_EQ(rank, whole.front());
      EXPECT_EQ(Run(size, one, DType::kF32, 13), whole) << "in chunks";
      EXPECT_LE(Difference(Run(size, one, DType::kF16, 0).front(), one.logits), 3e-2);
    }
  }
  const auto refused = Refused().find(GetParam());
  EXPECT_EQ(sizes > 0, refused == Refused().end()) << refusals;
  if (refused == Refused().end()) return;
  EXPECT_NE(refusals.find(refused->second), std::string::npos) << refusals;
}

INSTANTIATE_TEST_SUITE_P(Tiny, FamiliesRanksTest, ::testing::ValuesIn(FamilyFixtures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem
