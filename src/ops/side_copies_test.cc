// Copies beside the stream on every backend: what they carry, and what waits for what. Large and
// many, so that on a GPU a missing wait shows.
#include "ops/testing/op_test.h"

namespace tandem::ops {
namespace {

constexpr size_t kBytes = size_t{1} << 20;
constexpr int kRounds = 40;

class SideCopiesTest : public OpTest {
 protected:
  void Fill(void* device, int value) {
    auto* const bytes = pattern_.As<std::byte>();
    std::fill_n(bytes, kBytes, static_cast<std::byte>(value));
    backend().CopyToDevice(device, bytes, kBytes);
  }
  // Waits for everything.
  void ExpectFilled(const void* device, int value, int round) {
    std::vector<std::byte> bytes(kBytes);
    backend().CopyToHost(bytes.data(), device, kBytes);
    const std::vector<std::byte> expected(kBytes, static_cast<std::byte>(value));
    ASSERT_EQ(std::memcmp(bytes.data(), expected.data(), kBytes), 0) << "round " << round;
  }

  Buffer pattern_ = backend().AllocatePinned(kBytes).value();
};

// A block is evicted, its memory is used for something else by the stream, and it comes back.
TEST_P(SideCopiesTest, TheStreamWaitsAndContentComesBack) {
  const Buffer block = backend().Allocate(kBytes).value();
  const Buffer other = backend().Allocate(kBytes).value();
  const Buffer host = backend().AllocatePinned(kBytes).value();
  const Buffer zeros = backend().AllocatePinned(kBytes).value();
  for (int round = 1; round <= kRounds; ++round) {
    Fill(block.data(), round);
    backend().EnqueueSideCopyToHost(host.data(), block.data(), kBytes);
    backend().JoinSideCopies();
    backend().EnqueueCopyToDevice(block.data(), zeros.data(), kBytes);
    backend().EnqueueSideCopyToDevice(other.data(), host.data(), kBytes);
    backend().JoinSideCopies();
    ExpectFilled(other.data(), round, round);
    ExpectFilled(block.data(), 0, round);
  }
}

// In one list: a copy to the device waits for those to the host before it, for the host memory and
// for the block that it fills.
TEST_P(SideCopiesTest, CopiesToTheDeviceWaitForThoseToTheHostBeforeThem) {
  const Buffer block = backend().Allocate(kBytes).value();
  const Buffer next = backend().Allocate(kBytes).value();
  const Buffer host = backend().AllocatePinned(kBytes).value();
  const Buffer back = backend().AllocatePinned(kBytes).value();
  for (int round = 1; round <= kRounds; ++round) {
    Fill(block.data(), round);
    std::fill_n(back.As<std::byte>(), kBytes, static_cast<std::byte>(100 + round));
    backend().EnqueueSideCopyToHost(host.data(), block.data(), kBytes);
    backend().EnqueueSideCopyToDevice(block.data(), back.data(), kBytes);
    backend().EnqueueSideCopyToDevice(next.data(), host.data(), kBytes);
    backend().JoinSideCopies();
    ExpectFilled(block.data(), 100 + round, round);
    ExpectFilled(next.data(), round, round);
  }
}

// Host memory that was read by joined copies may be written by those after them.
TEST_P(SideCopiesTest, CopiesToTheHostWaitForJoinedOnesToTheDevice) {
  const Buffer first = backend().Allocate(kBytes).value();
  const Buffer second = backend().Allocate(kBytes).value();
  const Buffer out = backend().Allocate(kBytes).value();
  const Buffer host = backend().AllocatePinned(kBytes).value();
  for (int round = 1; round <= kRounds; ++round) {
    Fill(first.data(), round);
    Fill(second.data(), 100 + round);
    backend().EnqueueSideCopyToHost(host.data(), first.data(), kBytes);
    backend().EnqueueSideCopyToDevice(out.data(), host.data(), kBytes);
    backend().JoinSideCopies();
    backend().EnqueueSideCopyToHost(host.data(), second.data(), kBytes);
    backend().JoinSideCopies();
    ExpectFilled(out.data(), round, round);
    EXPECT_EQ(host.As<std::byte>()[kBytes - 1], static_cast<std::byte>(100 + round));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SideCopiesTest, ::testing::ValuesIn(AllBackendCases()),
                         CaseName);

}  // namespace
}  // namespace tandem::ops
