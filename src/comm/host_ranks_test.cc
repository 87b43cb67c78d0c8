// Ranks on the host, threads of one process or processes with connections (here threads that have
// the connections of processes): the same promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <thread>

#include "comm/in_process.h"
#include "comm/testing/join_in_threads.h"
#include "comm/testing/send_to_all.h"
#include "tensor/buffer.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

enum class Kind : uint8_t { kThreads, kProcesses };

std::vector<std::unique_ptr<Communicator>> MakeRanks(Kind kind, int size,
                                                     const Stages& stages = {}) {
  if (kind == Kind::kThreads) return MakeInProcessRanks(size, stages);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (JoinedRanks& joined : JoinInThreads(size, stages)) ranks.push_back(std::move(joined.ranks));
  return ranks;
}

class HostRanksTest : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  Kind kind() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }

  // Runs the ranks, each on a thread of its own.
  void RunRanks(const std::function<void(Communicator&)>& rank) const {
    RunRanks(size(), {}, rank);
  }
  void RunRanks(int size, const Stages& stages,
                const std::function<void(Communicator&)>& rank) const {
    const auto ranks = MakeRanks(kind(), size, stages);
    std::vector<std::thread> threads;
    for (const auto& one : ranks) threads.emplace_back([&rank, &one] { rank(*one); });
    for (std::thread& thread : threads) thread.join();
  }
  // Threads hear why another has failed; processes, that it has left.
  void ExpectFailed(const Communicator& comm, const std::string& why) const {
    EXPECT_EQ(comm.status().code(), Code::kUnavailable);
    if (kind() == Kind::kThreads) {
      EXPECT_EQ(comm.status().message(), why);
    }
  }
};

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

TEST_P(HostRanksTest, SumsAreThoseOfFp32InTheOrderOfTheRanksRoundedOnce) {
  const int size = this->size();
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
      RunRanks([&](Communicator& comm) {
        comm.AllReduce(buffers[static_cast<size_t>(comm.rank())].View(dtype, shape));
      });
      const std::vector<float> expected = FloatsOf(BufferOf(sums, dtype).View(dtype, shape));
      for (const Buffer& buffer : buffers) EXPECT_EQ(FloatsOf(buffer.View(dtype, shape)), expected);
    }
  }
}

TEST_P(HostRanksTest, PartsComeSideBySideWithoutWhatLiesBeyondTheLastColumn) {
  const int size = this->size();
  constexpr int64_t kRows = 5, kColumns = 101;
  const int64_t part = (kColumns + size - 1) / size;
  RunRanks([&](Communicator& comm) {
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

TEST_P(HostRanksTest, EveryRankGetsTheBytesOfTheFirst) {
  RunRanks([](Communicator& comm) {
    std::vector<int> values(300, comm.rank());
    comm.Broadcast(std::as_writable_bytes(std::span(values)));
    EXPECT_EQ(values, std::vector<int>(300, 0));
  });
}

TEST_P(HostRanksTest, EveryRankGetsTheRowsOfAnyOne) {
  RunRanks([](Communicator& comm) {
    for (int from = 0; from < comm.size(); ++from) {
      std::vector<float> rows(70, static_cast<float>(comm.rank()));
      SendToAll(comm, {rows.data(), DType::kF32, {7, 10}, {}}, from);
      EXPECT_EQ(rows, std::vector<float>(70, static_cast<float>(from)));
    }
  });
}

TEST_P(HostRanksTest, RowsAreHandedOnFromRankToRank) {
  RunRanks([](Communicator& comm) {
    for (int i = 0; i < 500; ++i) {
      std::vector<int32_t> rows(static_cast<size_t>(1 + i % 40), i);
      const Tensor view{rows.data(), DType::kI32, {static_cast<int64_t>(rows.size())}, {}};
      if (comm.rank() > 0) {
        std::ranges::fill(rows, -1);
        comm.Receive(view, comm.rank() - 1);
      }
      ASSERT_EQ(rows, std::vector<int32_t>(rows.size(), i + comm.rank()));
      for (int32_t& row : rows) ++row;
      if (comm.rank() + 1 < comm.size()) comm.Send(view, comm.rank() + 1);
    }
  });
}

TEST_P(HostRanksTest, ManyMeetingsKeepTheRanksInStep) {
  RunRanks([](Communicator& comm) {
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

TEST_P(HostRanksTest, ARankThatFailsEndsTheWaitOfTheOthers) {
  if (size() == 1) return;
  RunRanks([this](Communicator& comm) {
    float value = 1.0f;
    comm.AllReduce({&value, DType::kF32, {1, 1}, {}});
    if (comm.rank() == comm.size() - 1) {
      comm.Fail(Unavailable("the device is lost"));
    } else {
      comm.AllReduce({&value, DType::kF32, {1, 1}, {}});
    }
    comm.AllReduce({&value, DType::kF32, {1, 1}, {}});
    ExpectFailed(comm, "the device is lost");
  });
}

TEST_P(HostRanksTest, ARankThatLeavesEndsTheWaitOfTheOthers) {
  if (size() == 1) return;
  auto ranks = MakeRanks(kind(), size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank + 1 < size(); ++rank) {
    threads.emplace_back([&ranks, rank] {
      float value = 1.0f;
      ranks[static_cast<size_t>(rank)]->AllReduce({&value, DType::kF32, {1, 1}, {}});
    });
  }
  ranks.back().reset();
  for (std::thread& thread : threads) thread.join();
  ExpectFailed(*ranks.front(), "rank " + std::to_string(size() - 1) + " has left");
}

TEST_P(HostRanksTest, ARankThatFailsEndsTheWaitOfAReceiver) {
  if (size() == 1) return;
  RunRanks([this](Communicator& comm) {
    float value = 1.0f;
    const int last = comm.size() - 1;
    if (comm.rank() == last) return comm.Fail(Unavailable("the device is lost"));
    // From one that never sends.
    comm.Receive({&value, DType::kF32, {1, 1}, {}}, last);
    comm.Send({&value, DType::kF32, {1, 1}, {}}, last);
    ExpectFailed(comm, "the device is lost");
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostRanksTest,
                         testing::Combine(testing::Values(Kind::kThreads, Kind::kProcesses),
                                          testing::Values(1, 2, 3, 4)));

class HostStagesTest : public HostRanksTest {};

TEST_P(HostStagesTest, SumsAndPartsAreThoseOfAStage) {
  RunRanks(6, {.count = 3}, [](Communicator& comm) {
    Communicator& stage = comm.stage();
    EXPECT_EQ(stage.size(), 2);
    EXPECT_EQ(stage.rank(), comm.rank() % 2);
    EXPECT_EQ(&stage.stage(), &stage);
    const int first = comm.rank() - stage.rank();
    float sum = static_cast<float>(comm.rank());
    stage.AllReduce({&sum, DType::kF32, {1, 1}, {}});
    EXPECT_EQ(sum, static_cast<float>(2 * first + 1));
    float part = static_cast<float>(comm.rank());
    std::vector<float> all(2);
    stage.GatherColumns({&part, DType::kF32, {1, 1}, {}}, {all.data(), DType::kF32, {1, 2}, {}});
    EXPECT_EQ(all, (std::vector<float>{static_cast<float>(first), static_cast<float>(first + 1)}));
    // Each rank hands on to the one with its number in the next stage.
    float row = static_cast<float>(comm.rank());
    const Tensor view{&row, DType::kF32, {1, 1}, {}};
    if (comm.rank() >= 2) comm.Receive(view, comm.rank() - 2);
    EXPECT_EQ(row, static_cast<float>(stage.rank()));
    if (comm.rank() < 4) comm.Send(view, comm.rank() + 2);
    SendToAll(comm, view, 5);
    EXPECT_EQ(row, 1.0f);
  });
}

TEST_P(HostStagesTest, ARankThatFailsEndsTheWaitsOfOtherStages) {
  RunRanks(4, {.count = 2}, [this](Communicator& comm) {
    float value = 1.0f;
    const Tensor row{&value, DType::kF32, {1, 1}, {}};
    if (comm.rank() == 1) return comm.stage().Fail(Unavailable("the device is lost"));
    // The first stage waits for a sum, the last one for rows that nobody sends.
    if (comm.rank() == 0) comm.stage().AllReduce(row);
    if (comm.rank() >= 2) comm.Receive(row, comm.rank() - 2);
    ExpectFailed(comm, "the device is lost");
    ExpectFailed(comm.stage(), "the device is lost");
  });
}

TEST_P(HostStagesTest, ARankThatLeavesIsNamedByItsNumberAmongAll) {
  auto ranks = MakeRanks(kind(), 4, {.count = 2});
  ranks[3].reset();
  // A process sees it at the next meeting.
  float row = 1.0f;
  if (kind() == Kind::kProcesses) ranks.front()->Receive({&row, DType::kF32, {1, 1}, {}}, 3);
  EXPECT_EQ(ranks.front()->stage().status().message(), "rank 3 has left");
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostStagesTest,
                         testing::Combine(testing::Values(Kind::kThreads, Kind::kProcesses),
                                          testing::Values(0)));

}  // namespace
}  // namespace tandem
