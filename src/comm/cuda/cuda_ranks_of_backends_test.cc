// MakeCudaRanks with backends: what it refuses and, where there are two GPUs, ranks among the ops.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <random>
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

// Two GPUs as ranks, each used by a thread of its own.
class SumAndNormTest : public testing::Test {
 protected:
  struct Rank {
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<Communicator> comm;
  };
  void SetUp() override {
    if (ops::NumCudaDevices() < 2) GTEST_SKIP() << "needs 2 GPUs";
    std::vector<ops::Backend*> plain;
    for (int device = 0; device < 2; ++device) {
      ops::CudaOptions options;
      options.device = device;
      ranks_.push_back({ops::MakeCudaBackend(options).value(), nullptr});
      plain.push_back(ranks_.back().backend.get());
    }
    auto comms = MakeCudaRanks(plain).value();
    for (size_t rank = 0; rank < comms.size(); ++rank) ranks_[rank].comm = std::move(comms[rank]);
  }
  template <typename Function>
  void Run(const Function& run) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks_) {
      threads.emplace_back([&run, &rank] {
        rank.backend->BindThread();
        run(*rank.backend, *rank.comm);
        EXPECT_TRUE(rank.backend->Synchronize().ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<Rank> ranks_;
};

// Elements of 16 bits on a backend, as their bits.
class Elements {
 public:
  Elements(ops::Backend& backend, DType dtype, const Shape& shape, uint32_t seed)
      : backend_(backend), bits_(static_cast<size_t>(shape.NumElements())) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (uint16_t& bits : bits_) {
      bits = dtype == DType::kBF16 ? std::bit_cast<uint16_t>(ToBFloat16(normal(random)))
                                   : std::bit_cast<uint16_t>(ToFloat16(normal(random)));
    }
    memory_ = backend.Allocate(2 * bits_.size()).value();
    tensor = memory_.View(dtype, shape);
    Restore();
  }
  void Restore() { backend_.CopyToDevice(memory_.data(), bits_.data(), 2 * bits_.size()); }
  std::vector<uint16_t> Read() {
    std::vector<uint16_t> bits(bits_.size());
    backend_.CopyToHost(bits.data(), memory_.data(), 2 * bits.size());
    return bits;
  }

  Tensor tensor;

 private:
  ops::Backend& backend_;
  std::vector<uint16_t> bits_;
  Buffer memory_;
};

TEST_F(SumAndNormTest, HaveTheBitsOfASumAndOfANorm) {
  Run([](ops::Backend& backend, Communicator& comm) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t hidden : {256, 2048, 2560, 4096, 5120, 8192}) {
        const Shape of_column{hidden};
        const Elements weight(backend, dtype, of_column, 1);
        for (const int64_t rows : {1, 2, 17, 30}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << hidden);
          const auto seed = static_cast<uint32_t>(10 * comm.rank());
          const Shape shape{rows, hidden};
          Elements residual(backend, dtype, shape, 2), delta(backend, dtype, shape, 3 + seed);
          Elements out(backend, dtype, shape, 4);
          const ops::NormedRows x = {.residual = residual.tensor,
                                     .delta = delta.tensor,
                                     .norm = {.epsilon = 1e-5f, .weight = weight.tensor},
                                     .rows = out.tensor};
          comm.AllReduce(delta.tensor);
          backend.ops().AddNorm(x);
          const std::vector<uint16_t> stream = residual.Read(), normed = out.Read();
          // In a graph, after sums of other sizes.
          const auto enqueue = [&] {
            comm.AllReduce(out.tensor);
            EXPECT_TRUE(comm.AllReduceAddNorm(x));
          };
          for (Elements* const one : {&residual, &delta, &out}) one->Restore();
          enqueue();
          EXPECT_EQ(residual.Read(), stream);
          EXPECT_EQ(out.Read(), normed);
          const auto graph = backend.Capture(enqueue);
          ASSERT_NE(graph, nullptr);
          for (int launch = 0; launch < 5; ++launch) {
            for (Elements* const one : {&residual, &delta, &out}) one->Restore();
            backend.Launch(*graph);
            EXPECT_EQ(residual.Read(), stream);
            EXPECT_EQ(out.Read(), normed);
          }
        }
      }
    }
  });
}

TEST_F(SumAndNormTest, OtherNormsAndRowsAreLeftToTheirOwnKernels) {
  Run([](ops::Backend& backend, Communicator& comm) {
    const auto refuses = [&](int64_t rows, int64_t hidden, ops::Norm norm) {
      const Shape of_column{hidden};
      const Elements weight(backend, DType::kBF16, of_column, 1);
      const Shape shape{rows, hidden};
      const Elements residual(backend, DType::kBF16, shape, 2),
          delta(backend, DType::kBF16, shape, 3);
      norm.weight = weight.tensor;
      return !comm.AllReduceAddNorm({.residual = residual.tensor,
                                     .delta = delta.tensor,
                                     .norm = norm,
                                     .rows = residual.tensor});
    };
    EXPECT_TRUE(refuses(1, 96, {.weight = {}}));
    EXPECT_TRUE(refuses(1, 16384, {.weight = {}}));
    EXPECT_TRUE(refuses(1000, 4096, {.weight = {}}));
    EXPECT_TRUE(refuses(1, 4096, {.kind = ops::Norm::Kind::kLayer, .weight = {}}));
    EXPECT_TRUE(refuses(1, 4096, {.weight_offset = 1.0f, .weight = {}}));
  });
}

// A cluster whose blocks wait in vain ends.
TEST_F(SumAndNormTest, ARankThatFailsEndsTheWaitOfTheOther) {
  Run([](ops::Backend& backend, Communicator& comm) {
    const Shape shape{3, 8192};
    const Shape of_column{8192};
    const Elements residual(backend, DType::kBF16, shape, 2),
        delta(backend, DType::kBF16, shape, 3), weight(backend, DType::kBF16, of_column, 1);
    const ops::NormedRows x = {.residual = residual.tensor,
                               .delta = delta.tensor,
                               .norm = {.epsilon = 1e-5f, .weight = weight.tensor},
                               .rows = residual.tensor};
    EXPECT_TRUE(comm.AllReduceAddNorm(x));
    if (comm.rank() == 0) {
      EXPECT_TRUE(comm.AllReduceAddNorm(x));
      EXPECT_TRUE(comm.AllReduceAddNorm(x));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.Fail(Unavailable("the device is lost"));
    }
  });
  EXPECT_EQ(ranks_.front().comm->status().message(), "the device is lost");
}

}  // namespace
}  // namespace tandem
