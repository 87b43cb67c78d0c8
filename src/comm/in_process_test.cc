#include "comm/in_process.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>

#include "tensor/buffer.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// Runs the ranks, each on a thread of its own.
void RunRanks(int size, const std::function<void(Communicator&)>& rank) {
  const auto ranks = MakeInProcessRanks(size);
  std::vector<std::thread> threads;
  for (const auto& one : ranks) threads.emplace_back([&rank, &one] { rank(*one); });
  for (std::thread& thread : threads) thread.join();
}

Buffer BufferOf(const std::vector<float>& values, DType dtype) {
  const auto count = static_cast<int64_t>(values.size());
  Buffer buffer = Buffer::OnHost(values.size() * SizeOf(dtype));
  ConvertElements({const_cast<float*>(values.data()), DType::kF32, {count}, {}},
                  buffer.View(dtype, {count}));
  return buffer;
}

std::vector<float> FloatsOf(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.NumElements()));
  ConvertElements(tensor, {values.data(), DType::kF32, {tensor.NumElements()}, {}});
  return values;
}

class InProcessRanksTest : public testing::TestWithParam<int> {};

TEST_P(InProcessRanksTest, SumsAreThoseOfFp32InTheOrderOfTheRanksRoundedOnce) {
  const int size = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t rows : {1, 3, 70}) {
      const Shape shape{rows, 96};
      std::vector<std::vector<float>> values(static_cast<size_t>(size));
      std::vector<Buffer> buffers;
      std::mt19937 random(static_cast<uint32_t>(rows));
      std::normal_distribution<float> normal;
      std::vector<float> sums(static_cast<size_t>(shape.NumElements()));
      for (std::vector<float>& of_rank : values) {
        for (size_t i = 0; i < sums.size(); ++i) of_rank.push_back(normal(random));
        buffers.push_back(BufferOf(of_rank, dtype));
        const std::vector<float> stored = FloatsOf(buffers.back().View(dtype, shape));
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += stored[i];
      }
      RunRanks(size, [&](Communicator& comm) {
        comm.AllReduce(buffers[static_cast<size_t>(comm.rank())].View(dtype, shape));
      });
      const std::vector<float> expected = FloatsOf(BufferOf(sums, dtype).View(dtype, shape));
      for (const Buffer& buffer : buffers) EXPECT_EQ(FloatsOf(buffer.View(dtype, shape)), expected);
    }
  }
}

TEST_P(InProcessRanksTest, PartsComeSideBySideWithoutWhatLiesBeyondTheLastColumn) {
  const int size = GetParam();
  constexpr int64_t kRows = 5, kColumns = 101;
  const int64_t part = (kColumns + size - 1) / size;
  RunRanks(size, [&](Communicator& comm) {
    std::vector<float> mine, all(static_cast<size_t>(kRows * kColumns), -1.0f);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < part; ++i) {
        mine.push_back(static_cast<float>(1000 * row + comm.rank() * part + i));
      }
    }
    comm.GatherColumns({mine.data(), DType::kF32, {kRows, part}, {}},
                       {all.data(), DType::kF32, {kRows, kColumns}, {}});
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      EXPECT_EQ(all[static_cast<size_t>(i)],
                static_cast<float>(1000 * (i / kColumns) + i % kColumns));
    }
  });
}

TEST_P(InProcessRanksTest, EveryRankGetsTheBytesOfTheFirst) {
  RunRanks(GetParam(), [](Communicator& comm) {
    std::vector<int> values(300, comm.rank());
    comm.Broadcast(std::as_writable_bytes(std::span(values)));
    EXPECT_EQ(values, std::vector<int>(300, 0));
  });
}

TEST_P(InProcessRanksTest, ManyMeetingsKeepTheRanksInStep) {
  RunRanks(GetParam(), [](Communicator& comm) {
    float sum = static_cast<float>(comm.rank());
    for (int i = 0; i < 2000; ++i) {
      sum = static_cast<float>(comm.rank() + i);
      comm.AllReduce({&sum, DType::kF32, {1, 1}, {}});
      const int size = comm.size();
      ASSERT_EQ(sum, static_cast<float>(size * (size - 1) / 2 + size * i));
    }
    EXPECT_TRUE(comm.status().ok());
  });
}

TEST_P(InProcessRanksTest, ARankThatFailsEndsTheWaitOfTheOthers) {
  const int size = GetParam();
  if (size == 1) return;
  RunRanks(size, [](Communicator& comm) {
    float value = 1.0f;
    comm.AllReduce({&value, DType::kF32, {1, 1}, {}});
    if (comm.rank() == comm.size() - 1) {
      comm.Fail(Unavailable("the device is lost"));
    } else {
      comm.AllReduce({&value, DType::kF32, {1, 1}, {}});
    }
    comm.AllReduce({&value, DType::kF32, {1, 1}, {}});
    EXPECT_EQ(comm.status().message(), "the device is lost");
  });
}

TEST_P(InProcessRanksTest, ARankThatLeavesEndsTheWaitOfTheOthers) {
  const int size = GetParam();
  if (size == 1) return;
  auto ranks = MakeInProcessRanks(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank + 1 < size; ++rank) {
    threads.emplace_back([&ranks, rank] {
      float value = 1.0f;
      ranks[static_cast<size_t>(rank)]->AllReduce({&value, DType::kF32, {1, 1}, {}});
    });
  }
  ranks.back().reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ranks.front()->status().message(), "rank " + std::to_string(size - 1) + " has left");
}

INSTANTIATE_TEST_SUITE_P(Sizes, InProcessRanksTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace tandem
