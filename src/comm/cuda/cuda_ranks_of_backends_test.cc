// MakeCudaRanks with backends: what it refuses and, where there are two GPUs, ranks among the ops.
#include <gtest/gtest.h>

#include <thread>

#include "comm/cuda/cuda_ranks.h"
#include "tensor/dtype.h"

namespace tandem {
namespace {

TEST(CudaRanksOfBackendsTest, ACpuIsNoRank) {
  const auto cpu = ops::MakeCpuBackend({.num_threads = 1}).value();
  ops::Backend* const backends[] = {cpu.get()};
  const auto ranks = MakeCudaRanks(backends);
  ASSERT_FALSE(ranks.ok());
  if (ops::NumCudaDevices() == 0) return;
  EXPECT_EQ(ranks.status().code(), Code::kInvalidArgument);
}

// The sum of two ranks' rows between two ops, in a graph: an op that starts early must neither
// change the rows before the ranks have read them nor read them before they are added up.
TEST(CudaRanksOfBackendsTest, OpsBeforeAndAfterASumInAGraph) {
  if (ops::NumCudaDevices() < 2) GTEST_SKIP() << "needs 2 GPUs";
  std::vector<std::unique_ptr<ops::Backend>> backends;
  std::vector<ops::Backend*> plain;
  for (int device = 0; device < 2; ++device) {
    ops::CudaOptions options;
    options.device = device;
    backends.push_back(ops::MakeCudaBackend(options).value());
    plain.push_back(backends.back().get());
  }
  auto ranks = MakeCudaRanks(plain).value();
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ops::Backend& backend = *plain[rank];
      backend.BindThread();
      constexpr int64_t kCount = 8192;
      const Shape shape{1, kCount};
      const Buffer rows = backend.Allocate(2 * kCount).value();
      const Buffer step = backend.Allocate(2 * kCount).value();
      const std::vector<BFloat16> ones(kCount, ToBFloat16(1.0f));
      backend.CopyToDevice(step.data(), ones.data(), 2 * kCount);
      const auto graph = backend.Capture([&] {
        backend.ops().Add(rows.View(DType::kBF16, shape), step.View(DType::kBF16, shape));
        ranks[rank]->AllReduce(rows.View(DType::kBF16, shape));
        backend.ops().Add(rows.View(DType::kBF16, shape), step.View(DType::kBF16, shape));
      });
      ASSERT_NE(graph, nullptr);
      // x becomes 2 (x + 1) + 1: 3, 9, 21, 45, 93, which are exact.
      for (int launch = 0; launch < 5; ++launch) backend.Launch(*graph);
      std::vector<BFloat16> sums(kCount);
      backend.CopyToHost(sums.data(), rows.data(), 2 * kCount);
      for (const BFloat16 sum : sums) ASSERT_EQ(ToFloat(sum), 93.0f);
      EXPECT_TRUE(backend.Synchronize().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(ranks.front()->status().ok());
}

}  // namespace
}  // namespace tandem
