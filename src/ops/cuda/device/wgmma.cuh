// The matrix instructions of a warpgroup, four warps together (sm_90a): 64 rows, in registers or in
// shared memory, times a matrix in shared memory, 16 elements of each sum at a time (32 of fp8). A
// lane holds rows and sums as for mma.m16n8k16, warp w of the group the rows from 16 w on. Sums of
// products of 16 bits equal those of mma.m16n8k16 bit for bit, whatever the order inside the 16
// elements; linear_test checks it for rows in registers. Sums of products of fp8 keep fewer bits
// than fp32 has.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device/elements.cuh"

namespace tandem::ops::cuda {

constexpr int kWarpgroupThreads = 128;
constexpr int kWarpgroupRows = 64;

// Lower the warpgroup's registers per thread, so that another can raise its own.
template <int kRegisters>
__device__ inline void ShrinkRegistersTo() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void GrowRegistersTo() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The position of a tile in shared memory: rows of 128 bytes, the 16-byte pieces of row r at
// indices XORed with r % 8, aligned to 1024 bytes. PTX ISA, "Asynchronous warpgroup-level matrix
// shared memory layout", 128-byte swizzle. A matrix whose columns are summed over (K-major) has its
// rows here. So has one whose rows are summed over (MN-major), and where it is wider than 64
// elements each 64 columns are a tile, next_columns bytes after the one before.
__device__ inline uint64_t DescribeTile(const void* tile, uint32_t next_columns = 16) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | uint64_t{next_columns / 16} << 16 | (address >> 4 & 0x3fff);
}
// The difference of two descriptions that are 16 columns of 16 bits, or 32 of 8, apart, and 16
// rows.
constexpr uint64_t kNext16Columns = 2;
constexpr uint64_t kNext16Rows = 16 * 128 / 16;

// Call before the first product, and after writing registers that one uses.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of the warpgroup's products.
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when all groups except the last are done: their inputs may be written again.
__device__ inline void WaitForEarlierProducts() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
// Keeps reads of the sums after this point.
template <int kSums>
__device__ inline void ReadSumsFromHere(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
// Returns when all groups except the last are done: their sums may be read.
template <int kSums>
__device__ inline void WaitForEarlierProducts(float (&sums)[kSums]) {
  WaitForEarlierProducts();
  ReadSumsFromHere(sums);
}
// Returns when all are done: the sums may be read.
template <int kSums>
__device__ inline void WaitForProducts(float (&sums)[kSums]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  ReadSumsFromHere(sums);
}
// Call after writing to a tile in shared memory and before the barrier after which it is used.
__device__ inline void PublishTile() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define TANDEM_SUMS_8(s, i)                                                                   \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), \
      "+f"(s[i + 6]), "+f"(s[i + 7])
#define TANDEM_SUMS_16(s, i) TANDEM_SUMS_8(s, i), TANDEM_SUMS_8(s, i + 8)
#define TANDEM_SUMS_32(s, i) TANDEM_SUMS_16(s, i), TANDEM_SUMS_16(s, i + 16)
#define TANDEM_SUMS_64(s, i) TANDEM_SUMS_32(s, i), TANDEM_SUMS_32(s, i + 32)
#define TANDEM_SUMS_96(s, i) TANDEM_SUMS_64(s, i), TANDEM_SUMS_32(s, i + 64)

#define TANDEM_WGMMA_32(type, transposed)                                            \
  asm volatile(                                                                      \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"                             \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                    \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "    \
      "{%16, %17, %18, %19}, %20, p, 1, 1, %22;\n\t}"                                \
      : TANDEM_SUMS_16(sums, 0)                                                      \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(tokens), "r"(static_cast<int>(add)), \
        "n"(static_cast<int>(transposed)))
#define TANDEM_WGMMA_64(type, transposed)                                                 \
  asm volatile(                                                                           \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                         \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n\t}"                                     \
      : TANDEM_SUMS_32(sums, 0)                                                           \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(tokens), "r"(static_cast<int>(add)),      \
        "n"(static_cast<int>(transposed)))
#define TANDEM_WGMMA_128(type, transposed)                                                \
  asm volatile(                                                                           \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n\t}"                                     \
      : TANDEM_SUMS_64(sums, 0)                                                           \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(tokens), "r"(static_cast<int>(add)),      \
        "n"(static_cast<int>(transposed)))
#define TANDEM_WGMMA_SHARED_128(type)                                                     \
  asm volatile(                                                                           \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "%64, %65, p, 1, 1, 0, 0;\n\t}"                                                     \
      : TANDEM_SUMS_64(sums, 0)                                                           \
      : "l"(rows), "l"(tokens), "r"(static_cast<int>(add)))
#define TANDEM_WGMMA_FP8_32()                                          \
  asm volatile(                                                        \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t"               \
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3"           \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
      "%14, %15}, "                                                    \
      "%16, %17, p, 1, 1;\n\t}"                                        \
      : TANDEM_SUMS_16(sums, 0)                                        \
      : "l"(rows), "l"(tokens), "r"(static_cast<int>(add)))
#define TANDEM_WGMMA_FP8_64()                                          \
  asm volatile(                                                        \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"               \
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"           \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "   \
      "%26, %27, %28, %29, %30, %31}, "                                \
      "%32, %33, p, 1, 1;\n\t}"                                        \
      : TANDEM_SUMS_32(sums, 0)                                        \
      : "l"(rows), "l"(tokens), "r"(static_cast<int>(add)))
#define TANDEM_WGMMA_FP8_128()                                        \
  asm volatile(                                                       \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"              \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "        \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "  \
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "  \
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "  \
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
      "%62, %63}, "                                                   \
      "%64, %65, p, 1, 1;\n\t}"                                       \
      : TANDEM_SUMS_64(sums, 0)                                       \
      : "l"(rows), "l"(tokens), "r"(static_cast<int>(add)))
#define TANDEM_WGMMA_FP8_192()                                        \
  asm volatile(                                                       \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %98, 0;\n\t"              \
      "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 "        \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "  \
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "  \
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "  \
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
      "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, "  \
      "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "  \
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "           \
      "%96, %97, p, 1, 1;\n\t}"                                       \
      : TANDEM_SUMS_96(sums, 0)                                       \
      : "l"(rows), "l"(tokens), "r"(static_cast<int>(add)))

// Starts sums (+)= rows * tokens, complete after WaitForProducts. T: bf16 or fp16. sums[4 j ..]:
// the lane's sums for tokens 8 j ..; a0 .. a3: as of mma.m16n8k16; tokens: from DescribeTile, a row
// each, or with kTransposed a column each. The sums restart from zero unless `add`.
template <typename T, int kTokens, bool kTransposed = false>
__device__ inline void BeginProduct(float (&sums)[kTokens / 2], uint32_t a0, uint32_t a1,
                                    uint32_t a2, uint32_t a3, uint64_t tokens, bool add) {
  static_assert(kTokens == 32 || kTokens == 64 || kTokens == 128);
  constexpr bool kHalf = std::is_same_v<T, Fp16>;
  if constexpr (kTokens == 32 && kHalf) {
    TANDEM_WGMMA_32("f16", kTransposed);
  } else if constexpr (kTokens == 32) {
    TANDEM_WGMMA_32("bf16", kTransposed);
  } else if constexpr (kTokens == 64 && kHalf) {
    TANDEM_WGMMA_64("f16", kTransposed);
  } else if constexpr (kTokens == 64) {
    TANDEM_WGMMA_64("bf16", kTransposed);
  } else if constexpr (kHalf) {
    TANDEM_WGMMA_128("f16", kTransposed);
  } else {
    TANDEM_WGMMA_128("bf16", kTransposed);
  }
}

// The same for rows that are in shared memory too, described alike, and 128 tokens.
template <typename T>
__device__ inline void BeginProduct(float (&sums)[64], uint64_t rows, uint64_t tokens, bool add) {
  if constexpr (std::is_same_v<T, Fp16>) {
    TANDEM_WGMMA_SHARED_128("f16");
  } else {
    TANDEM_WGMMA_SHARED_128("bf16");
  }
}

// The same for fp8, 32 elements of each sum at a time: both matrices are K-major.
template <int kTokens>
__device__ inline void BeginFp8Product(float (&sums)[kTokens / 2], uint64_t rows, uint64_t tokens,
                                       bool add) {
  static_assert(kTokens == 32 || kTokens == 64 || kTokens == 128 || kTokens == 192);
  if constexpr (kTokens == 32) {
    TANDEM_WGMMA_FP8_32();
  } else if constexpr (kTokens == 64) {
    TANDEM_WGMMA_FP8_64();
  } else if constexpr (kTokens == 128) {
    TANDEM_WGMMA_FP8_128();
  } else {
    TANDEM_WGMMA_FP8_192();
  }
}

#undef TANDEM_WGMMA_FP8_192
#undef TANDEM_WGMMA_FP8_128
#undef TANDEM_WGMMA_FP8_64
#undef TANDEM_WGMMA_FP8_32
#undef TANDEM_WGMMA_SHARED_128
#undef TANDEM_WGMMA_128
#undef TANDEM_WGMMA_64
#undef TANDEM_WGMMA_32
#undef TANDEM_SUMS_96
#undef TANDEM_SUMS_64
#undef TANDEM_SUMS_32
#undef TANDEM_SUMS_16
#undef TANDEM_SUMS_8

}  // namespace tandem::ops::cuda
