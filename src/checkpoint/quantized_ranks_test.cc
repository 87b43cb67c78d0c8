// Quantized checkpoints on stages, which are threads here: with the weights kept as they are
// stored, of which some are exceptions of their layer, the logits have the bits of one stage.
#include <gtest/gtest.h>

#include <thread>

#include "checkpoint/testing/golden.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "comm/in_process.h"
#include "model/rank_source.h"
#include "model/testing/decoder_driver.h"

namespace tandem {
namespace {

std::filesystem::path Folder() { return SourceDir() / "tests/data/checkpoints"; }

using Logits = std::vector<std::vector<float>>;

// A checkpoint of several layers, and on how many stages it is computed.
class QuantizedRanksTest : public ::testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  Logits RunRank(Communicator& comm, const std::vector<int32_t>& tokens) {
    const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
    const auto reader = OpenCheckpoint(Folder() / GetParam().first).value();
    const RankPlace place{.stage = comm.rank(), .stages = comm.size()};
    const auto spec = RankSpec(reader->spec(), place);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    RankSource source(*reader, *spec);
    const auto count = static_cast<int32_t>(tokens.size());
    const auto weights = LoadWeights(source, *backend, count);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ((*weights)->bytes, WeightBytes(*spec, *backend, count));
    return DecoderTestDriver(*weights, *backend, count, {}, &comm).Feed(tokens);
  }
  std::vector<Logits> Run(int stages, const std::vector<int32_t>& tokens) {
    const auto comms = MakeInProcessRanks(stages, {.count = stages});
    std::vector<Logits> logits(comms.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < comms.size(); ++rank) {
      threads.emplace_back([&, rank] { logits[rank] = RunRank(*comms[rank], tokens); });
    }
    for (std::thread& thread : threads) thread.join();
    return logits;
  }
};

TEST_P(QuantizedRanksTest, StagesHaveTheSameBitsAsOne) {
  const auto& [name, stages] = GetParam();
  const auto tokens = GoldenPrompts(Folder() / name).at("short");
  const Logits whole = Run(1, tokens).front();
  for (const Logits& rank : Run(stages, tokens)) EXPECT_EQ(rank, whole);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, QuantizedRanksTest,
                         ::testing::Values(std::pair("fp8_pp3", 2), std::pair("fp8_pp3", 3),
                                           std::pair("fp8_pp3", 4), std::pair("awq_pp2_tp2", 2)),
                         [](const auto& info) {
                           return std::string(info.param.first) + "Pp" +
                                  std::to_string(info.param.second);
                         });

}  // namespace
}  // namespace tandem
