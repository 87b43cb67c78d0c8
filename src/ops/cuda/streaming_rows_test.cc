// The blocks of products with few tokens, for the layers of Llama on a GPU of 132 SMs.
#include "ops/cuda/streaming_rows.h"

#include <gtest/gtest.h>

namespace tandem::ops::cuda {
namespace {

constexpr int kSms = 132;

constexpr int kSharedBytes = 227 << 10;

StreamingProduct Product(int64_t rows, int64_t tokens, int64_t cols = 4096) {
  return {
      .rows = rows, .cols = cols, .tokens = tokens, .num_sms = kSms, .shared_bytes = kSharedBytes};
}
StreamingBlocks Bytes(int64_t rows, int64_t tokens, int64_t cols = 4096) {
  return RowwiseStreamingBlocks(Product(rows, tokens, cols));
}

// qkv, out, gate and up, down.
constexpr int64_t k1B[] = {3072, 2048, 16384, 2048};
constexpr int64_t k8B[] = {6144, 4096, 28672, 4096};
constexpr int64_t k70B[] = {10240, 8192, 57344, 8192};

TEST(StreamingRowsTest, BlocksThatAreNoMoreThanSmsHaveOneEach) {
  for (const int64_t tokens : {1, 8, 16}) {
    EXPECT_EQ(Bytes(k1B[1], tokens), (StreamingBlocks{16, 1})) << tokens;
    EXPECT_EQ(Bytes(k1B[0], tokens), (StreamingBlocks{32, 1})) << tokens;
    EXPECT_EQ(Bytes(k8B[1], tokens), (StreamingBlocks{32, 1})) << tokens;
    EXPECT_EQ(Bytes(k8B[3], tokens, 14336), (StreamingBlocks{32, 1})) << tokens;
  }
}

TEST(StreamingRowsTest, MoreBlocksShareTheSms) {
  for (const int64_t rows : {k1B[2], k8B[0], k8B[2], k70B[1], k70B[2]}) {
    for (const int64_t tokens : {1, 8, 16}) {
      EXPECT_EQ(Bytes(rows, tokens), (StreamingBlocks{32, 2})) << rows << ", " << tokens;
    }
  }
}

TEST(StreamingRowsTest, TwoTurnsOfBlocksHaveAnSmEachWhereTheyAreLongOrBetterBalanced) {
  EXPECT_EQ(Bytes(k70B[3], 1, 28672), (StreamingBlocks{32, 1}));
  EXPECT_EQ(Bytes(k70B[0], 1, 8192), (StreamingBlocks{48, 1}));
}

// A block of the next kernel fits beside one that has an SM to itself, a second one of its own does
// not.
TEST(StreamingRowsTest, ABlockThatHasAnSmToItselfLeavesRoomForTheNextKernels) {
  constexpr int kSmBytes = 228 << 10;
  constexpr int kReserved = 1 << 10;  // of every block
  EXPECT_GT(2 * (kLeastBytesAlone + kReserved), kSmBytes);
  EXPECT_LE(StreamingBlockBytes(1) + StreamingBlockBytes(2) + 2 * kReserved, kSmBytes);
  EXPECT_GE(StreamingBlockBytes(1), kLeastBytesAlone);
}

TEST(StreamingRowsTest, NoBlockIsAloneOnAGpuWithLittleSharedMemory) {
  for (const int64_t rows : {2048, 4096, 8192, 10240}) {
    for (const int64_t tokens : {1, 16}) {
      StreamingProduct product = Product(rows, tokens, 28672);
      product.shared_bytes = 99 << 10;
      EXPECT_EQ(RowwiseStreamingBlocks(product), (StreamingBlocks{32, 2})) << rows;
      EXPECT_EQ(Int4StreamingBlocks(product), (StreamingBlocks{32, 2})) << rows;
    }
  }
}

StreamingBlocks Int4(int64_t rows, int64_t tokens) {
  return Int4StreamingBlocks(Product(rows, tokens));
}

TEST(StreamingRowsTest, WeightsOf4BitsTakeLargerBlocks) {
  for (const int64_t tokens : {1, 8, 16}) {
    EXPECT_EQ(Int4(2048, tokens), (StreamingBlocks{16, 1})) << tokens;
    EXPECT_EQ(Int4(4096, tokens), (StreamingBlocks{32, 1})) << tokens;
    EXPECT_EQ(Int4(28672, tokens), (StreamingBlocks{64, 2})) << tokens;
  }
  EXPECT_EQ(Int4(6144, 8), (StreamingBlocks{32, 2}));
  EXPECT_EQ(Int4(6144, 9), (StreamingBlocks{64, 1}));
  EXPECT_EQ(Int4(10240, 16), (StreamingBlocks{32, 2}));
}

TEST(StreamingRowsTest, ExpertsTakeLargeBlocksWhereThereAreEnoughOfThem) {
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

TEST(StreamingRowsTest, ExpertsTakeSmallBlocksOnAGpuWithLittleSharedMemory) {
  const StreamingExperts experts{
      .rows = 4096, .segment = 128, .most_items = 8, .num_sms = kSms, .shared_bytes = 99 << 10};
  EXPECT_EQ(StreamingExpertRows(experts, true), 32);
  EXPECT_EQ(StreamingExpertRows(experts, false), 32);
  EXPECT_LT(StreamingExpertBytes(32), experts.shared_bytes);
}

// A shape is taken whatever the machine: a part of a GPU, no rows to speak of.
TEST(StreamingRowsTest, OddShapesHaveAChoice) {
  for (const int sms : {1, 7, 132}) {
    for (const int64_t rows : {1, 15, 16, 17, 8192}) {
      StreamingProduct product = Product(rows, 1);
      product.num_sms = sms;
      for (const auto choose : {RowwiseStreamingBlocks, Int4StreamingBlocks}) {
        const StreamingBlocks blocks = choose(product);
        EXPECT_TRUE(blocks.rows % 16 == 0 && blocks.rows <= 64 && blocks.per_sm >= 1)
            << rows << " rows, " << sms << " SMs";
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
