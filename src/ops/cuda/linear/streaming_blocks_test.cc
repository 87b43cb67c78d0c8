// The blocks of products with few tokens, for the layers of Llama on a GPU of 132 SMs.
#include "ops/cuda/linear/streaming_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem::ops::cuda {
namespace {

constexpr int kSms = 132;

constexpr int kSharedBytes = 227 << 10;

StreamingProduct Product(int64_t rows, int64_t tokens, int64_t cols = 4096) {
  return {
      .rows = rows, .cols = cols, .tokens = tokens, .num_sms = kSms, .shared_bytes = kSharedBytes};
}
StreamingBlocks Blocks(int64_t rows, int64_t tokens, int64_t cols = 4096) {
  return RowwiseStreamingBlocks(Product(rows, tokens, cols));
}

// qkv, out, gate and up, down.
constexpr int64_t k1B[] = {3072, 2048, 16384, 2048};
constexpr int64_t k8B[] = {6144, 4096, 28672, 4096};
constexpr int64_t k70B[] = {10240, 8192, 57344, 8192};

TEST(StreamingBlocksTest, BlocksThatAreNoMoreThanSmsHaveOneEach) {
  for (const int64_t tokens : {1, 8, 16}) {
    EXPECT_EQ(Blocks(k1B[1], tokens), (StreamingBlocks{16, 1})) << tokens;
    EXPECT_EQ(Blocks(k1B[0], tokens), (StreamingBlocks{32, 1})) << tokens;
    EXPECT_EQ(Blocks(k8B[1], tokens), (StreamingBlocks{32, 1})) << tokens;
    EXPECT_EQ(Blocks(k8B[3], tokens, 14336), (StreamingBlocks{32, 1})) << tokens;
  }
}

TEST(StreamingBlocksTest, MoreBlocksShareTheSms) {
  for (const int64_t rows : {k1B[2], k8B[0], k8B[2], k70B[1], k70B[2]}) {
    for (const int64_t tokens : {1, 8, 16}) {
      EXPECT_EQ(Blocks(rows, tokens), (StreamingBlocks{32, 2})) << rows << ", " << tokens;
    }
  }
}

TEST(StreamingBlocksTest, TwoTurnsOfLongBlocksHaveAnSmEach) {
  EXPECT_EQ(Blocks(k70B[3], 1, 28672), (StreamingBlocks{32, 1}));
}

TEST(StreamingBlocksTest, LargeBlocksAreForLayersThatTheyDivideEvenly) {
  for (const int64_t tokens : {1, 8, 16}) {
    EXPECT_EQ(Blocks(k70B[0], tokens, 8192), (StreamingBlocks{80, 1}));
    EXPECT_EQ(Blocks(132 * 80, tokens, 8192), (StreamingBlocks{80, 1}));
    EXPECT_EQ(Blocks(132 * 80 + 1, tokens, 8192), (StreamingBlocks{32, 2}));
  }
}

// A block of the next kernel fits beside one that has an SM to itself, a second one of its own does
// not.
TEST(StreamingBlocksTest, ABlockThatHasAnSmToItselfLeavesRoomForTheNextKernels) {
  constexpr int kSmBytes = 228 << 10;
  constexpr int kReserved = 1 << 10;  // of every block
  EXPECT_GT(2 * (kLeastBytesAlone + kReserved), kSmBytes);
  EXPECT_LE(StreamingBlockBytes(1) + StreamingBlockBytes(2) + 2 * kReserved, kSmBytes);
  EXPECT_GE(StreamingBlockBytes(1), kLeastBytesAlone);
}

TEST(StreamingBlocksTest, AGpuWithLittleSharedMemoryTakesSmallerBlocks) {
  for (const int64_t rows : {2048, 4096, 8192, 10240}) {
    for (const int64_t tokens : {1, 16}) {
      StreamingProduct product = Product(rows, tokens, 28672);
      product.shared_bytes = 99 << 10;
      EXPECT_EQ(RowwiseStreamingBlocks(product), (StreamingBlocks{rows == 2048 ? 16 : 32, 2}))
          << rows;
      EXPECT_EQ(Int4StreamingBlocks(product, {}), (StreamingBlocks{32, 2})) << rows;
    }
  }
}

TEST(StreamingBlocksTest, WeightsOf4BitsTakeLargerBlocksForManyRowsOrTokens) {
  const auto blocks = [](int64_t rows, int64_t tokens, Int4Limits limits = {}) {
    return Int4StreamingBlocks(Product(rows, tokens), limits);
  };
  for (const int64_t tokens : {1, 8, 16}) {
    EXPECT_EQ(blocks(2048, tokens), (StreamingBlocks{16, 1})) << tokens;
    EXPECT_EQ(blocks(2048, tokens, {.pairs = true}), (StreamingBlocks{32, 1})) << tokens;
    EXPECT_EQ(blocks(4096, tokens), (StreamingBlocks{32, 1})) << tokens;
    EXPECT_EQ(blocks(28672, tokens), (StreamingBlocks{64, 2})) << tokens;
    EXPECT_EQ(blocks(28672, tokens, {.short_groups = true}), (StreamingBlocks{32, 2})) << tokens;
  }
  EXPECT_EQ(blocks(6144, 8), (StreamingBlocks{32, 2}));
  EXPECT_EQ(blocks(6144, 9), (StreamingBlocks{64, 1}));
  EXPECT_EQ(blocks(6144, 9, {.short_groups = true}), (StreamingBlocks{32, 2}));
  EXPECT_EQ(blocks(10240, 16), (StreamingBlocks{32, 2}));
}

TEST(StreamingBlocksTest, ExpertsTakeLargeBlocksWhereThereAreEnoughOfThem) {
  const auto rows = [](int64_t rows, int64_t segment, int64_t items, bool int4) {
    return StreamingExpertRows({.rows = rows,
                                .segment = segment,
                                .most_items = items,
                                .num_sms = kSms,
                                .shared_bytes = kSharedBytes},
                               int4);
  };
  EXPECT_EQ(rows(2048, 128, 8, false), 64);   // `down` of 128 experts of 768 columns
  EXPECT_EQ(rows(1536, 256, 8, false), 32);   // gate and up of them
  EXPECT_EQ(rows(4096, 1792, 8, false), 32);  // `down` of 8 experts of 14,336 columns
  EXPECT_EQ(rows(4096, 1792, 8, true), 64);
  EXPECT_EQ(rows(4096, 1792, 2, true), 32);  // two of them leave SMs without work
  EXPECT_EQ(rows(2048, 128, 1, false), 32);
}

TEST(StreamingBlocksTest, ExpertsTakeSmallBlocksOnAGpuWithLittleSharedMemory) {
  const StreamingExperts experts{
      .rows = 4096, .segment = 128, .most_items = 8, .num_sms = kSms, .shared_bytes = 99 << 10};
  EXPECT_EQ(StreamingExpertRows(experts, true), 32);
  EXPECT_EQ(StreamingExpertRows(experts, false), 32);
  EXPECT_LT(StreamingExpertBytes(32), experts.shared_bytes);
}

// Every choice has a kernel (LaunchWhole), whatever the machine: a part of a GPU, no rows to speak
// of.
TEST(StreamingBlocksTest, EveryChoiceHasAKernel) {
  using Choices = std::vector<StreamingBlocks>;
  const Choices rowwise = {{16, 1}, {32, 1}, {80, 1}, {16, 2}, {32, 2}};
  for (const int sms : {1, 7, 60, 132}) {
    for (const int shared_bytes : {99 << 10, kSharedBytes}) {
      for (const int64_t tokens : {1, 16}) {
        for (int64_t rows = 1; rows < 40000; rows += rows < 32 ? 1 : 61) {
          StreamingProduct product = Product(rows, tokens, rows % 2 == 0 ? 4096 : 28672);
          product.num_sms = sms;
          product.shared_bytes = shared_bytes;
          ASSERT_THAT(rowwise, ::testing::Contains(RowwiseStreamingBlocks(product)))
              << rows << " rows, " << sms << " SMs";
          for (const bool pairs : {false, true}) {
            for (const bool short_groups : {false, true}) {
              Choices int4 = {{32, 1}, {32, 2}};
              if (!short_groups) int4.push_back({64, 2});
              if (!short_groups && tokens > 8) int4.push_back({64, 1});
              if (!short_groups && !pairs) int4.push_back({16, 1});
              ASSERT_THAT(int4, ::testing::Contains(Int4StreamingBlocks(
                                    product, {.pairs = pairs, .short_groups = short_groups})))
                  << rows << " rows, " << sms << " SMs";
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
