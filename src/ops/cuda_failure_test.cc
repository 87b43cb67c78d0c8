// A backend's errors when its GPU fails. A separate program, because the process loses the GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/backend.h"

namespace tandem::ops {
namespace {

using ::testing::HasSubstr;

class CudaFailureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU here";
    backend_ = MakeCudaBackend({}).value();
  }
  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaFailureTest, RefusedMemoryIsAnAnswerAndTheBackendGoesOn) {
  const Result<Buffer> device = backend_->Allocate(size_t{1} << 50);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(device.status().message(), HasSubstr("1125899906842624 bytes of device memory"));
  const Result<Buffer> pinned = backend_->AllocatePinned(size_t{1} << 50);
  ASSERT_FALSE(pinned.ok());
  EXPECT_EQ(pinned.status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(backend_->Synchronize().ok());
  const Buffer memory = backend_->Allocate(64).value();
  int32_t value = 1;
  backend_->CopyToHost(&value, memory.data(), sizeof(value));
  EXPECT_EQ(value, 0);
  EXPECT_TRUE(backend_->Synchronize().ok());
}

// Last in the file: nothing works after it.
TEST_F(CudaFailureTest, AKernelThatFailsIsWhatEveryLaterWaitReturns) {
  const Buffer memory = backend_->Allocate(size_t{1} << 16).value();
  const Buffer rows = backend_->Allocate(64).value();
  backend_->Mark(0);
  EXPECT_TRUE(backend_->WaitFor(0).ok());
  // Rows of a table that does not exist.
  const Tensor nowhere{nullptr, DType::kBF16, {16, 64}, backend_->device()};
  backend_->ops().GatherRows(nowhere, rows.As<int32_t>(), memory.View(DType::kBF16, {16, 64}));
  backend_->Mark(1);
  const Status failure = backend_->WaitFor(1);
  EXPECT_EQ(failure.code(), Code::kUnavailable);
  EXPECT_THAT(failure.message(), HasSubstr("illegal memory access"));
  // Work enqueued now fails as well, and the first failure is reported.
  backend_->ops().GatherRows(nowhere, rows.As<int32_t>(), memory.View(DType::kBF16, {16, 64}));
  int32_t value = 0;
  backend_->CopyToHost(&value, rows.data(), sizeof(value));
  EXPECT_EQ(backend_->Synchronize().message(), failure.message());
  EXPECT_EQ(backend_->WaitFor(0).message(), failure.message());
  EXPECT_EQ(backend_->Allocate(64).status().code(), Code::kUnavailable);
  EXPECT_EQ(backend_->Capture([] {}), nullptr);
  EXPECT_EQ(backend_->FreeBytes(), 0);
  EXPECT_FALSE(MakeCudaBackend({}).ok()) << "and the process gets no other";
}

}  // namespace
}  // namespace tandem::ops
