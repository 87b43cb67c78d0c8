// The promises of Communicator, kept by GPUs. Needs as many GPUs as a case has ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/cuda/testing/gpus.cuh"
#include "comm/nccl_library.h"
#include "comm/testing/send_to_all.h"
#include "tensor/convert.h"

namespace tandem::cuda_ranks {
namespace {

using ops::cuda::CheckCuda;

// Elements as `dtype` stores them, and back.
std::vector<std::byte> Stored(const std::vector<float>& values, DType dtype) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  ConvertElements({const_cast<float*>(values.data()), DType::kF32, {count}, {}},
                  {bytes.data(), dtype, {count}, {}});
  return bytes;
}
std::vector<float> Widened(std::vector<std::byte> bytes, DType dtype) {
  const auto count = static_cast<int64_t>(bytes.size() / SizeOf(dtype));
  std::vector<float> values(static_cast<size_t>(count));
  ConvertElements({bytes.data(), dtype, {count}, {}}, {values.data(), DType::kF32, {count}, {}});
  return values;
}

void Upload(const RankOfGpu& rank, const Tensor& to, const std::vector<std::byte>& bytes) {
  ASSERT_EQ(static_cast<size_t>(to.NumBytes()), bytes.size());
  CheckCuda(cudaMemcpyAsync(to.data, bytes.data(), bytes.size(), cudaMemcpyDefault, rank.stream()),
            "an upload");
  rank.Synchronize();
}
std::vector<std::byte> Download(const RankOfGpu& rank, const Tensor& from) {
  std::vector<std::byte> bytes(static_cast<size_t>(from.NumBytes()));
  CheckCuda(
      cudaMemcpyAsync(bytes.data(), from.data, bytes.size(), cudaMemcpyDefault, rank.stream()),
      "a download");
  rank.Synchronize();
  return bytes;
}
void CopyOnStream(const RankOfGpu& rank, const Tensor& to, const Tensor& from) {
  CheckCuda(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.NumBytes()),
                            cudaMemcpyDeviceToDevice, rank.stream()),
            "a copy");
}

std::vector<float> Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}
// Small whole numbers, so that sums are exact.
float Whole(int rank, int call, int64_t i) {
  return static_cast<float>((i * 7 + call * 13 + rank * 5) % 61 - 30);
}
std::vector<float> Wholes(int rank, int call, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(Whole(rank, call, i));
  return values;
}
std::vector<float> SumOfWholes(int size, int call, int64_t count) {
  std::vector<float> sums(static_cast<size_t>(count));
  for (int rank = 0; rank < size; ++rank) {
    for (int64_t i = 0; i < count; ++i) sums[static_cast<size_t>(i)] += Whole(rank, call, i);
  }
  return sums;
}

// kProcesses: each GPU is one of another process; kOneOfProcesses: all are of one, as if there were
// others.
enum class Way { kDefault, kOneShot, kTwoShot, kProcesses, kOneOfProcesses };

// Ranks, and how they add up.
class CudaRanksTest : public testing::TestWithParam<std::pair<int, Way>> {
 protected:
  void SetUp() override {
    if (NumGpus() < size()) {
      GTEST_SKIP() << "needs " << size() << " GPUs, this machine has " << NumGpus();
    }
    StreamRanksOptions options;
    if (GetParam().second == Way::kOneShot) {
      options.one_shot_bytes = std::numeric_limits<int64_t>::max();
    }
    if (GetParam().second == Way::kTwoShot) options.one_shot_bytes = 0;
    const int processes = GetParam().second == Way::kProcesses        ? size()
                          : GetParam().second == Way::kOneOfProcesses ? 1
                                                                      : 0;
    if (processes > 0 && !NcclLibrary::Load().ok()) GTEST_SKIP() << "needs NCCL";
    gpus_ = std::make_unique<Gpus>(size(), options, processes);
  }
  void TearDown() override {
    gpus_.reset();
    EXPECT_EQ(ops::cuda::TakeFailure().message(), "");
  }

  int size() const { return GetParam().first; }
  void Run(const std::function<void(RankOfGpu&)>& run) { gpus_->Run(run); }
  // Of all ranks.
  void ExpectSums(const Shape& shape, DType dtype, int64_t offset);

  std::unique_ptr<Gpus> gpus_;
};

// Rows `offset` bytes from aligned memory.
void CudaRanksTest::ExpectSums(const Shape& shape, DType dtype, int64_t offset) {
  const int64_t count = shape.NumElements();
  std::vector<std::vector<std::byte>> rows;
  std::vector<float> sums(static_cast<size_t>(count));
  for (int rank = 0; rank < size(); ++rank) {
    rows.push_back(Stored(Normal(count, static_cast<uint32_t>(count + rank)), dtype));
    const std::vector<float> values = Widened(rows.back(), dtype);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = rank == 0 ? values[i] : sums[i] + values[i];
  }
  const std::vector<std::byte> expected = Stored(sums, dtype);
  Run([&](RankOfGpu& rank) {
    constexpr int64_t kBeyond = 64;  // bytes that must stay as they are
    const auto bytes = static_cast<int64_t>(expected.size());
    const GpuMemory memory(static_cast<size_t>(offset + bytes + kBeyond));
    const Tensor view = memory.View(dtype, shape, offset);
    Upload(rank, view, rows[static_cast<size_t>(rank.comm->rank())]);
    rank.comm->AllReduce(view);
    EXPECT_TRUE(Download(rank, view) == expected)
        << shape.ToString() << " " << DTypeName(dtype) << " + " << offset << ", rank "
        << rank.comm->rank();
    const Tensor beyond = memory.View(DType::kU8, {kBeyond}, offset + bytes);
    EXPECT_EQ(Download(rank, beyond), std::vector<std::byte>(kBeyond));
    EXPECT_TRUE(rank.comm->status().ok());
  });
}

TEST_P(CudaRanksTest, SumsAreThoseOfFp32InTheOrderOfTheRanksRoundedOnce) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t rows : {1, 3, 70}) {
      ExpectSums({rows, 96}, dtype, 0);
      ExpectSums({rows, 101}, dtype, 0);
    }
    ExpectSums({1, 1}, dtype, 0);
    ExpectSums({3, 2048}, dtype, static_cast<int64_t>(SizeOf(dtype)));
  }
}

TEST_P(CudaRanksTest, SumsOfManyRoundsOfABlock) {
  ExpectSums({700, 2048}, DType::kBF16, 0);
  ExpectSums({701, 2049}, DType::kF32, 0);
  ExpectSums({2500, 4096}, DType::kBF16, 0);
}

// One GatherColumns, with numbers that tell row and column.
void ExpectGather(RankOfGpu& rank, int64_t rows, int64_t columns) {
  const int64_t width = (columns + rank.comm->size() - 1) / rank.comm->size();
  const auto value = [](int64_t row, int64_t column) {
    return static_cast<float>(row * 100'003 + column);
  };
  std::vector<float> mine, expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      mine.push_back(value(row, rank.comm->rank() * width + i));
    }
    for (int64_t i = 0; i < columns; ++i) expected.push_back(value(row, i));
  }
  const GpuMemory part(mine.size() * sizeof(float)), all((expected.size() + 16) * sizeof(float));
  const Tensor part_view = part.View(DType::kF32, {rows, width});
  const Tensor all_view = all.View(DType::kF32, {rows, columns});
  Upload(rank, part_view, Stored(mine, DType::kF32));
  rank.comm->GatherColumns(part_view, all_view);
  EXPECT_TRUE(Download(rank, all_view) == Stored(expected, DType::kF32))
      << rows << " rows, " << columns << " columns, rank " << rank.comm->rank();
  const Tensor beyond = all.View(DType::kF32, {16}, all_view.NumBytes());
  EXPECT_EQ(Download(rank, beyond), std::vector<std::byte>(16 * sizeof(float)));
}

TEST_P(CudaRanksTest, PartsComeSideBySideWithoutWhatLiesBeyondTheLastColumn) {
  Run([](RankOfGpu& rank) {
    for (const int64_t columns : {1, 5, 101, 128, 130, 32'000}) {
      for (const int64_t rows : {1, 5, 33}) ExpectGather(rank, rows, columns);
    }
    ExpectGather(rank, 300, 32'001);
    ExpectGather(rank, 130, 128'256);
  });
}

TEST_P(CudaRanksTest, CallsBackToBackOfVaryingSizesKeepTheRanksInStep) {
  constexpr int kCalls = 500;
  std::mt19937 random(5);
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (int call = 0; call < kCalls; ++call) {
    // From one element to some rounds of every block.
    counts.push_back(1 + static_cast<int64_t>(random() % 97) *
                             static_cast<int64_t>(random() % (call % 50 == 0 ? 8'000 : 300)));
    total += counts.back();
  }
  Run([&](RankOfGpu& rank) {
    const int size = rank.comm->size();
    std::vector<float> values, expected;
    for (int call = 0; call < kCalls; ++call) {
      const int64_t count = counts[static_cast<size_t>(call)];
      const std::vector<float> mine = Wholes(rank.comm->rank(), call, count);
      values.insert(values.end(), mine.begin(), mine.end());
      std::vector<float> result = SumOfWholes(size, call, count);
      if (call % 3 == 2) {  // gathered
        result.clear();
        for (int from = 0; from < size; ++from) {
          const std::vector<float> part = Wholes(from, call, count);
          result.insert(result.end(), part.begin(), part.end());
        }
      }
      result.resize(static_cast<size_t>(count * size));
      expected.insert(expected.end(), result.begin(), result.end());
    }
    const GpuMemory inputs(values.size() * sizeof(float));
    const GpuMemory results(expected.size() * sizeof(float));
    Upload(rank, inputs.View(DType::kF32, {total}), Stored(values, DType::kF32));
    int64_t begin = 0;
    for (int call = 0; call < kCalls; ++call) {
      const int64_t count = counts[static_cast<size_t>(call)];
      const Tensor input = inputs.View(DType::kF32, {1, count}, 4 * begin);
      const Tensor result = results.View(DType::kF32, {1, count}, 4 * begin * size);
      if (call % 3 == 2) {
        rank.comm->GatherColumns(input,
                                 results.View(DType::kF32, {1, count * size}, 4 * begin * size));
      } else {
        CopyOnStream(rank, result, input);
        rank.comm->AllReduce(result);
      }
      begin += count;
    }
    EXPECT_TRUE(Download(rank, results.View(DType::kF32, {total * size})) ==
                Stored(expected, DType::kF32))
        << "rank " << rank.comm->rank();
    EXPECT_TRUE(rank.comm->status().ok());
  });
}

TEST_P(CudaRanksTest, ARecordedGraphAddsUpWhatItFindsEachTimeItIsLaunched) {
  constexpr int kReplays = 200;
  constexpr int64_t kSmall = 4096, kLarge = 300'000, kPart = 1000;
  Run([&](RankOfGpu& rank) {
    const int size = rank.comm->size();
    constexpr int64_t kCount = kSmall + kLarge;
    // Eight inputs, in turn; the results of every launch.
    constexpr int kInputs = 8;
    const GpuMemory inputs(sizeof(uint16_t) * kInputs * kCount);
    const GpuMemory rows(sizeof(uint16_t) * kCount);
    const GpuMemory results(sizeof(uint16_t) * kReplays * kCount);
    const GpuMemory parts(sizeof(float) * kInputs * kPart), part(sizeof(float) * kPart);
    const GpuMemory all(sizeof(float) * static_cast<size_t>(kPart * size));
    const GpuMemory gathered(sizeof(float) * kReplays * static_cast<size_t>(kPart * size));
    for (int i = 0; i < kInputs; ++i) {
      Upload(rank, inputs.View(DType::kBF16, {kCount}, 2 * i * kCount),
             Stored(Wholes(rank.comm->rank(), i, kCount), DType::kBF16));
      Upload(rank, parts.View(DType::kF32, {kPart}, 4 * i * kPart),
             Stored(Wholes(rank.comm->rank(), i, kPart), DType::kF32));
    }
    const cudaGraphExec_t graph = rank.Record([&] {
      rank.comm->AllReduce(rows.View(DType::kBF16, {1, kSmall}));
      rank.comm->AllReduce(rows.View(DType::kBF16, {1, kLarge}, 2 * kSmall));
      rank.comm->GatherColumns(part.View(DType::kF32, {1, kPart}),
                               all.View(DType::kF32, {1, kPart * size}));
    });
    for (int replay = 0; replay < kReplays; ++replay) {
      const int i = replay % kInputs;
      CopyOnStream(rank, rows.View(DType::kBF16, {kCount}),
                   inputs.View(DType::kBF16, {kCount}, 2 * i * kCount));
      CopyOnStream(rank, part.View(DType::kF32, {kPart}),
                   parts.View(DType::kF32, {kPart}, 4 * i * kPart));
      CheckCuda(cudaGraphLaunch(graph, rank.stream()), "a graph");
      CopyOnStream(rank, results.View(DType::kBF16, {kCount}, 2 * replay * kCount),
                   rows.View(DType::kBF16, {kCount}));
      CopyOnStream(rank, gathered.View(DType::kF32, {kPart * size}, 4 * replay * kPart * size),
                   all.View(DType::kF32, {kPart * size}));
    }
    for (int replay = 0; replay < kReplays; ++replay) {
      const int i = replay % kInputs;
      EXPECT_TRUE(Download(rank, results.View(DType::kBF16, {kCount}, 2 * replay * kCount)) ==
                  Stored(SumOfWholes(size, i, kCount), DType::kBF16))
          << "launch " << replay << ", rank " << rank.comm->rank();
      std::vector<float> expected;
      for (int from = 0; from < size; ++from) {
        const std::vector<float> one = Wholes(from, i, kPart);
        expected.insert(expected.end(), one.begin(), one.end());
      }
      EXPECT_TRUE(
          Download(rank, gathered.View(DType::kF32, {kPart * size}, 4 * replay * kPart * size)) ==
          Stored(expected, DType::kF32))
          << "launch " << replay << ", rank " << rank.comm->rank();
    }
    cudaGraphExecDestroy(graph);
    EXPECT_TRUE(rank.comm->status().ok());
  });
}

// From rank to rank, each of which adds up its own rows too; then the last one's to all.
TEST_P(CudaRanksTest, RowsAreHandedOnAndTheLastOnesReachAll) {
  std::vector<int64_t> counts = {1, 7, 8, 96, 101, 4096, 70'000, 2'000'001};
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) counts.push_back(1 + static_cast<int64_t>(random() % 30'000));
  Run([&](RankOfGpu& rank) {
    const int own = rank.comm->rank(), last = rank.comm->size() - 1;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (size_t call = 0; call < counts.size(); ++call) {
        const int64_t count = counts[call];
        constexpr int64_t kBeyond = 64;
        // Every other call at an address that no piece has.
        const auto element = static_cast<int64_t>(SizeOf(dtype));
        const int64_t offset = call % 2 == 0 ? 0 : element;
        const GpuMemory memory(static_cast<size_t>(offset + count * element + kBeyond));
        const Tensor rows = memory.View(dtype, {1, count}, offset);
        const auto expected = [&](int from) {
          return Stored(Wholes(from, static_cast<int>(call), count), dtype);
        };
        if (own > 0) {
          rank.comm->Receive(rows, own - 1);
          ASSERT_TRUE(Download(rank, rows) == expected(own - 1)) << count << " from " << own - 1;
        }
        Upload(rank, rows, expected(own));
        if (own < last) rank.comm->Send(rows, own + 1);
        SendToAll(*rank.comm, rows, last);
        ASSERT_TRUE(Download(rank, rows) == expected(last)) << count << " of the last";
        EXPECT_EQ(Download(rank, memory.View(DType::kU8, {kBeyond}, offset + rows.NumBytes())),
                  std::vector<std::byte>(kBeyond));
      }
    }
    EXPECT_TRUE(rank.comm->status().ok());
  });
}

// Nothing is read back in between: senders run ahead as far as they can.
TEST_P(CudaRanksTest, ARecordedGraphHandsOnWhatItFindsEachTimeItIsLaunched) {
  constexpr int kReplays = 200;
  constexpr int64_t kCount = 50'000, kFew = 100;
  Run([&](RankOfGpu& rank) {
    const int own = rank.comm->rank(), last = rank.comm->size() - 1;
    constexpr int kInputs = 8;
    const GpuMemory inputs(sizeof(uint16_t) * kInputs * kCount), rows(sizeof(uint16_t) * kCount);
    const GpuMemory results(sizeof(uint16_t) * kReplays * kCount);
    for (int i = 0; i < kInputs; ++i) {
      Upload(rank, inputs.View(DType::kBF16, {kCount}, 2 * i * kCount),
             Stored(Wholes(0, i, kCount), DType::kBF16));
    }
    const Tensor all = rows.View(DType::kBF16, {1, kCount});
    const Tensor few = rows.View(DType::kBF16, {1, kFew});
    // Rows go from the first to the last, of which the first few come back.
    const cudaGraphExec_t graph = rank.Record([&] {
      if (own > 0) rank.comm->Receive(all, own - 1);
      if (own < last) rank.comm->Send(all, own + 1);
      SendToAll(*rank.comm, few, last);
    });
    for (int replay = 0; replay < kReplays; ++replay) {
      const int i = replay % kInputs;
      if (own == 0) {
        CopyOnStream(rank, rows.View(DType::kBF16, {kCount}),
                     inputs.View(DType::kBF16, {kCount}, 2 * i * kCount));
      }
      CheckCuda(cudaGraphLaunch(graph, rank.stream()), "a graph");
      CopyOnStream(rank, results.View(DType::kBF16, {kCount}, 2 * replay * kCount),
                   rows.View(DType::kBF16, {kCount}));
    }
    for (int replay = 0; replay < kReplays; ++replay) {
      ASSERT_TRUE(Download(rank, results.View(DType::kBF16, {kCount}, 2 * replay * kCount)) ==
                  Stored(Wholes(0, replay % kInputs, kCount), DType::kBF16))
          << "launch " << replay << ", rank " << own;
    }
    cudaGraphExecDestroy(graph);
    EXPECT_TRUE(rank.comm->status().ok());
  });
}

TEST_P(CudaRanksTest, ARankThatFailsEndsTheWaitOfTheOthers) {
  Run([](RankOfGpu& rank) {
    constexpr int64_t kCount = 10'000;
    const GpuMemory memory(sizeof(float) * kCount);
    const Tensor rows = memory.View(DType::kF32, {1, kCount});
    const GpuMemory all(sizeof(float) * kCount * static_cast<size_t>(rank.comm->size()));
    const cudaGraphExec_t graph = rank.Record([&] {
      for (int call = 0; call < 50; ++call) rank.comm->AllReduce(rows);
      rank.comm->GatherColumns(rows, all.View(DType::kF32, {1, kCount * rank.comm->size()}));
    });
    rank.comm->AllReduce(rows);
    rank.Synchronize();
    if (rank.comm->rank() == rank.comm->size() - 1) {
      // The others' kernels are waiting by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      rank.comm->Fail(Unavailable("the device is lost"));
      rank.comm->Fail(Unavailable("another reason"));
    } else {
      CheckCuda(cudaGraphLaunch(graph, rank.stream()), "a graph");
      rank.Synchronize();
    }
    EXPECT_EQ(rank.comm->status().message(), "the device is lost");
    // Nothing waits any more: neither what is enqueued now nor what was recorded before.
    const auto begin = std::chrono::steady_clock::now();
    rank.comm->AllReduce(rows);
    CheckCuda(cudaGraphLaunch(graph, rank.stream()), "a graph");
    rank.Synchronize();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    cudaGraphExecDestroy(graph);
  });
}

TEST_P(CudaRanksTest, ARankThatLeavesEndsTheWaitOfTheOthers) {
  const int last = size() - 1;
  Run([&](RankOfGpu& rank) {
    if (rank.comm->rank() == last) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      rank.comm.reset();
      return;
    }
    const GpuMemory memory(64);
    rank.comm->AllReduce(memory.View(DType::kF32, {1, 16}));
    rank.Synchronize();
  });
  EXPECT_EQ(gpus_->ranks().front().comm->status().message(),
            "rank " + std::to_string(last) + " has left");
}

// A rank that enqueues ahead fills the GPU's queue, and waits for room in it. In a process of its
// own: what is enqueued when a rank fails may read what NCCL has freed, after which the process can
// use no GPU any more.
TEST_P(CudaRanksTest, ARankThatFailsEndsTheWaitOfOneThatHasEnqueuedMuch) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [this] {
    Run([](RankOfGpu& rank) {
      constexpr int64_t kCount = 200'000;
      const GpuMemory memory(sizeof(float) * kCount);
      const Tensor rows = memory.View(DType::kF32, {1, kCount});
      if (rank.comm->rank() > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        rank.comm->Fail(Unavailable("the device is lost"));
      } else {
        for (int call = 0; call < 3000; ++call) rank.comm->AllReduce(rows);
      }
      rank.Synchronize();
      EXPECT_EQ(rank.comm->status().message(), "the device is lost");
    });
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(0), "");
}

// A process destroys one rank after the other, each with its graphs.
TEST_P(CudaRanksTest, ACommunicatorMayGoBeforeTheGraphsOfOtherRanks) {
  // NCCL waits for all graphs of the program, and knows nothing of processes that are threads.
  if (GetParam().second == Way::kProcesses) return;
  std::vector<cudaGraphExec_t> graphs(gpus_->ranks().size());
  Run([&](RankOfGpu& rank) {
    const GpuMemory memory(4096);
    const cudaGraphExec_t graph =
        rank.Record([&] { rank.comm->AllReduce(memory.View(DType::kF32, {1, 1024})); });
    CheckCuda(cudaGraphLaunch(graph, rank.stream()), "a graph");
    rank.Synchronize();
    graphs[static_cast<size_t>(rank.comm->rank())] = graph;
  });
  for (size_t rank = graphs.size(); rank-- > 0;) {
    CheckCuda(cudaGraphExecDestroy(graphs[rank]), "a graph");
    gpus_->ranks()[rank].comm.reset();
  }
}

std::string NameOf(const testing::TestParamInfo<std::pair<int, Way>>& info) {
  static constexpr std::array kNames = {"Default", "OneShot", "TwoShot", "Processes",
                                        "OneOfProcesses"};
  const auto& [size, way] = info.param;
  return std::to_string(size) + "Gpus" + kNames[static_cast<size_t>(way)];
}
INSTANTIATE_TEST_SUITE_P(Sizes, CudaRanksTest,
                         testing::Values(std::pair{2, Way::kDefault}, std::pair{2, Way::kOneShot},
                                         std::pair{2, Way::kTwoShot}, std::pair{3, Way::kDefault},
                                         std::pair{4, Way::kDefault}, std::pair{4, Way::kOneShot},
                                         std::pair{4, Way::kTwoShot}, std::pair{2, Way::kProcesses},
                                         std::pair{4, Way::kProcesses},
                                         std::pair{2, Way::kOneOfProcesses}),
                         NameOf);

// Ranks of a stage, stages, and processes; 0: all are of this one.
class CudaStagesTest : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  void SetUp() override {
    const auto& [ranks, stages, processes] = GetParam();
    if (NumGpus() < ranks * stages) {
      GTEST_SKIP() << "needs " << ranks * stages << " GPUs, this machine has " << NumGpus();
    }
    if (processes > 0 && !NcclLibrary::Load().ok()) GTEST_SKIP() << "needs NCCL";
    gpus_ = std::make_unique<Gpus>(ranks * stages, StreamRanksOptions{{}, {.count = stages}, {}},
                                   processes);
  }
  void TearDown() override {
    gpus_.reset();
    EXPECT_EQ(ops::cuda::TakeFailure().message(), "");
  }

  std::unique_ptr<Gpus> gpus_;
};

// As a model's layers do: sums in a stage, rows to the next one, and what the last one has gathered
// to all.
TEST_P(CudaStagesTest, SumsAreThoseOfAStageWhoseRowsGoOn) {
  const auto& [ranks, stages, processes] = GetParam();
  constexpr int kSteps = 100;
  constexpr int64_t kCount = 3000, kPart = 50;
  gpus_->Run([&](RankOfGpu& rank) {
    Communicator& all = *rank.comm;
    Communicator& stage = all.stage();
    ASSERT_EQ(stage.size(), ranks);
    ASSERT_EQ(stage.rank(), all.rank() % ranks);
    const bool is_first = all.rank() < ranks, is_last = all.rank() + ranks >= all.size();
    const GpuMemory input(sizeof(float) * kCount), rows(sizeof(float) * kCount);
    const GpuMemory gathered(sizeof(float) * static_cast<size_t>(kPart * ranks));
    const Tensor in = input.View(DType::kF32, {1, kCount});
    const Tensor stream = rows.View(DType::kF32, {1, kCount});
    const Tensor logits = gathered.View(DType::kF32, {1, kPart * ranks});
    Upload(rank, in, Stored(Wholes(0, 0, kCount), DType::kF32));
    const cudaGraphExec_t graph = rank.Record([&] {
      if (!is_first) all.Receive(stream, all.rank() - ranks);
      stage.AllReduce(stream);
      if (!is_last) all.Send(stream, all.rank() + ranks);
      if (is_last) stage.GatherColumns(rows.View(DType::kF32, {1, kPart}), logits);
      SendToAll(all, logits, all.size() - ranks);
    });
    for (int step = 0; step < kSteps; ++step) {
      if (is_first) CopyOnStream(rank, stream, in);
      CheckCuda(cudaGraphLaunch(graph, rank.stream()), "a graph");
    }
    // Each stage adds up `ranks` equal rows.
    std::vector<float> expected;
    for (int from = 0; from < ranks; ++from) {
      for (int64_t i = 0; i < kPart; ++i) {
        expected.push_back(Whole(0, 0, i) * static_cast<float>(std::pow(ranks, stages)));
      }
    }
    EXPECT_TRUE(Download(rank, logits) == Stored(expected, DType::kF32)) << "rank " << all.rank();
    EXPECT_TRUE(all.status().ok());
    cudaGraphExecDestroy(graph);
  });
}

TEST_P(CudaStagesTest, ARankThatFailsEndsTheWaitsOfOtherStages) {
  const auto& [ranks, stages, processes] = GetParam();
  gpus_->Run([&](RankOfGpu& rank) {
    Communicator& all = *rank.comm;
    constexpr int64_t kCount = 2'000'000;
    const GpuMemory memory(sizeof(float) * kCount);
    const Tensor rows = memory.View(DType::kF32, {1, kCount});
    if (all.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      all.stage().Fail(Unavailable("the device is lost"));
    } else if (all.rank() < ranks) {
      all.stage().AllReduce(rows);
    } else {
      all.Receive(rows, all.rank() - ranks);
      // More than a channel holds, to one that does not receive.
      all.Send(rows, all.rank() - ranks);
    }
    rank.Synchronize();
    EXPECT_EQ(all.status().message(), "the device is lost");
    EXPECT_EQ(all.stage().status().message(), "the device is lost");
  });
}

std::string NameOfStages(const testing::TestParamInfo<std::tuple<int, int, int>>& info) {
  const auto& [ranks, stages, processes] = info.param;
  const std::string name = std::to_string(stages) + "StagesOf" + std::to_string(ranks);
  return processes == 0 ? name : name + "In" + std::to_string(processes) + "Processes";
}
INSTANTIATE_TEST_SUITE_P(Sizes, CudaStagesTest,
                         testing::Values(std::tuple{1, 2, 0}, std::tuple{1, 3, 0},
                                         std::tuple{2, 2, 0}, std::tuple{1, 2, 2},
                                         std::tuple{2, 2, 2}, std::tuple{2, 2, 4},
                                         std::tuple{1, 4, 2}),
                         NameOfStages);

TEST(CudaRankTest, OneRankAloneHasTheSumAndAllColumns) {
  if (NumGpus() == 0) GTEST_SKIP() << "no GPU here";
  Gpus gpus(1);
  gpus.Run([](RankOfGpu& rank) {
    const GpuMemory memory(64);
    const Tensor rows = memory.View(DType::kF32, {1, 16});
    Upload(rank, rows, Stored(Wholes(0, 0, 16), DType::kF32));
    rank.comm->AllReduce(rows);
    EXPECT_EQ(Download(rank, rows), Stored(Wholes(0, 0, 16), DType::kF32));
    ExpectGather(rank, 3, 50);
    EXPECT_TRUE(rank.comm->status().ok());
  });
}

TEST(CudaRankTest, AGpuIsOneRank) {
  if (NumGpus() == 0) GTEST_SKIP() << "no GPU here";
  const std::vector<ops::cuda::Context> twice(2);
  const auto ranks = MakeStreamRanks(twice, {});
  ASSERT_FALSE(ranks.ok());
  EXPECT_EQ(ranks.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ranks.status().message(), "GPU 0 is two ranks at once");
}

}  // namespace
}  // namespace tandem::cuda_ranks
