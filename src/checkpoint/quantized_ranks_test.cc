// Quantized models on several ranks, which are threads here. Checkpoints on stages: with the
// weights kept as they are stored, of which some are exceptions of their layer, the logits have the
// bits of one stage. Folders in act-order, whose columns are divided otherwise than they are
// stored.
#include <gtest/gtest.h>

#include <thread>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/golden.h"
#include "checkpoint/testing/quantized_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "comm/in_process.h"
#include "model/rank_source.h"
#include "model/testing/decoder_driver.h"
#include "model/testing/relative_error.h"

namespace tandem {
namespace {

std::filesystem::path Folder() { return SourceDir() / "tests/data/checkpoints"; }

using Logits = std::vector<std::vector<float>>;

using Opens = std::function<std::unique_ptr<WeightSource>()>;

Logits RunRank(const Opens& open, Communicator& comm, const std::vector<int32_t>& tokens) {
  const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
  const auto whole = open();
  const Communicator& stage = comm.stage();
  const RankPlace place{.rank = stage.rank(),
                        .ranks = stage.size(),
                        .stage = comm.rank() / stage.size(),
                        .stages = comm.size() / stage.size()};
  const auto spec = RankSpec(whole->spec(), place);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  RankSource source(*whole, *spec);
  const auto count = static_cast<int32_t>(tokens.size());
  const auto weights = LoadWeights(source, *backend, count);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ((*weights)->bytes, WeightBytes(*spec, *backend, count));
  return DecoderTestDriver(*weights, *backend, count, {}, &comm).Feed(tokens);
}
std::vector<Logits> LogitsOfRanks(const Opens& open, int ranks, int stages,
                                  const std::vector<int32_t>& tokens) {
  const auto comms = MakeInProcessRanks(ranks * stages, {.count = stages});
  std::vector<Logits> logits(comms.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back([&, rank] { logits[rank] = RunRank(open, *comms[rank], tokens); });
  }
  for (std::thread& thread : threads) thread.join();
  return logits;
}

// A checkpoint of several layers, and on how many stages it is computed.
class QuantizedRanksTest : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(QuantizedRanksTest, StagesHaveTheSameBitsAsOne) {
  const auto& [name, stages] = GetParam();
  const auto tokens = GoldenPrompts(Folder() / name).at("short");
  const Opens open = [&] { return OpenCheckpoint(Folder() / name).value(); };
  const Logits whole = LogitsOfRanks(open, 1, 1, tokens).front();
  for (const Logits& rank : LogitsOfRanks(open, 1, stages, tokens)) EXPECT_EQ(rank, whole);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, QuantizedRanksTest,
                         ::testing::Values(std::pair("fp8_pp3", 2), std::pair("fp8_pp3", 3),
                                           std::pair("fp8_pp3", 4), std::pair("awq_pp2_tp2", 2)),
                         [](const auto& info) {
                           return std::string(info.param.first) + "Pp" +
                                  std::to_string(info.param.second);
                         });

// Folders whose columns are in act-order, in groups of 16 or of 32. On 8 ranks groups of 32 are not
// whole.
class ActOrderRanksTest : public FolderTest, public ::testing::WithParamInterface<const char*> {
 protected:
  ActOrderRanksTest() {
    const std::vector<quantized::Format> formats = quantized::Formats();
    quantized::WriteBoth(folder_,
                         *std::ranges::find(formats, GetParam(), &quantized::Format::name));
  }
  Opens Open(const char* folder) const {
    return [path = folder_ / folder] { return HfReader::Open(path, DType::kF32).value(); };
  }
};

TEST_P(ActOrderRanksTest, ComputeLikeTheSameModelInFp32) {
  const std::vector<int32_t> tokens = {5, 80, 7, 9, 33, 2, 90, 41};
  const Logits plain = LogitsOfRanks(Open("plain"), 1, 1, tokens).front();
  for (const auto& [ranks, stages] :
       {std::pair(2, 1), std::pair(4, 1), std::pair(8, 1), std::pair(2, 2)}) {
    SCOPED_TRACE(::testing::Message() << ranks << " ranks of " << stages << " stages");
    const std::vector<Logits> logits = LogitsOfRanks(Open("quantized"), ranks, stages, tokens);
    EXPECT_LE(RelativeError(logits.front(), plain), 1e-3);
    for (const Logits& rank : logits) EXPECT_EQ(rank, logits.front());
  }
}

// The columns of attention's output belong to heads, which lie anywhere in the order; which neurons
// a rank has may follow the order.
TEST_P(ActOrderRanksTest, NeuronsStayQuantizedWhereGroupsAreWhole) {
  const ModelSpec whole = Open("quantized")()->spec();
  const int64_t group = whole.quantization.block_columns;
  for (const int64_t ranks : {2, 4, 8}) {
    const ModelSpec part = RankSpec(whole, {.ranks = ranks}).value();
    EXPECT_TRUE(SchemeOf(part, WeightRole::kAttentionOut, 0).is_plain());
    QuantScheme down = whole.quantization;
    down.input_order = false;
    if (128 / ranks % group != 0) down = {};
    EXPECT_EQ(SchemeOf(part, WeightRole::kDown, 0), down);
    EXPECT_EQ(SchemeOf(part, WeightRole::kUp, 0), whole.quantization);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ActOrderRanksTest,
                         ::testing::Values("gptq_act_order", "gptq_8_bits_act_order",
                                           "packed_act_order"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem
