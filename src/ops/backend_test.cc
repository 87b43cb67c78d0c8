// The backend itself: choice of instruction set, memory, measurement.
#include "ops/op_test.h"

namespace tandem::ops {
namespace {

using ::testing::HasSubstr;

TEST(CpuBackendTest, SaysWhichInstructionSetsAreTested) {
  const std::vector<std::string> supported = SupportedCpuIsas();
  EXPECT_EQ(supported.front(), "scalar");
  for (const std::string isa : {"scalar", "avx2", "avx512", "avx512_bf16", "amx"}) {
    const bool here = std::find(supported.begin(), supported.end(), isa) != supported.end();
    std::printf("%-12s %s\n", isa.c_str(), here ? "tested here" : "ABSENT on this CPU: not tested");
  }
}

TEST(CpuBackendTest, RefusesAnInstructionSetItLacksAndNamesTheOthers) {
  const auto backend = MakeCpuBackend({.isa = "avx1024"});
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(backend.status().message(), HasSubstr("avx1024"));
  EXPECT_THAT(backend.status().message(), HasSubstr("scalar"));
}

TEST(CpuBackendTest, ChoosesOnceAndForAll) {
  const auto first = MakeCpuBackend({.num_threads = 1});
  const auto second = MakeCpuBackend({.num_threads = 1});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->Describe(), (*second)->Describe());
  EXPECT_THAT((*first)->Describe(), HasSubstr("1 thread"));
}

TEST(CpuBackendTest, MemoryIsZeroedAndAlignedAndRefusedPolitely) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{5} << 20}) {
    const Buffer buffer = backend->Allocate(bytes).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (size_t i = 0; i < bytes; i += 97) ASSERT_EQ(buffer.As<char>()[i], 0);
  }
  const auto refused = backend->Allocate(size_t{1} << 60);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("1152921504606846976"));
}

TEST(CpuBackendTest, RefusesToPackIntegers) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  const Buffer memory = Buffer::OnHost(64);
  const Tensor weight = memory.View(DType::kI8, {8, 8});
  EXPECT_EQ(backend->PackLinear({{{weight}}}, DType::kI8).status().code(), Code::kUnimplemented);
}

TEST(CpuBackendTest, RefusesToRoundWeights) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  const Buffer memory = Buffer::OnHost(128);
  const Tensor weight = memory.View(DType::kBF16, {8, 8});
  const Status status = backend->PackLinear({{{weight}}}, DType::kF8E4M3).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr(std::string(DTypeName(DType::kF8E4M3))));
}

TEST(CpuBackendTest, MatrixPeakIsPlausible) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  const double peak = backend->MeasureMatrixPeak(DType::kBF16);
  EXPECT_GT(peak, 1e8);
  EXPECT_LT(peak, 1e14);
}

}  // namespace
}  // namespace tandem::ops
