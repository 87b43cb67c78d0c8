// The blocks of products with few tokens, for the layers of Llama on a GPU of 132 SMs.
#include "ops/cuda/streaming_rows.h"

#include <gtest/gtest.h>

namespace tandem::ops::cuda {
namespace {

constexpr int kSms = 132;

int Rows(int64_t rows, int64_t tokens) {
  return StreamingRows({.rows = rows, .tokens = tokens, .num_sms = kSms});
}

// qkv, out, gate and up, down.
constexpr int64_t k1B[] = {3072, 2048, 16384, 2048};
constexpr int64_t k8B[] = {6144, 4096, 28672, 4096};
constexpr int64_t k70B[] = {10240, 8192, 57344, 8192};

TEST(StreamingRowsTest, FewTokensTake32Rows) {
  for (const auto& model : {k8B, k70B}) {
    for (int i = 0; i < 4; ++i) {
      for (const int64_t tokens : {1, 4}) EXPECT_EQ(Rows(model[i], tokens), 32) << model[i];
    }
  }
}

// Their activations are read half as often.
TEST(StreamingRowsTest, MoreTokensTake64RowsWhereBlocksFillTheGpu) {
  for (const int64_t tokens : {5, 8, 16}) {
    EXPECT_EQ(Rows(28672, tokens), 64) << tokens;
    EXPECT_EQ(Rows(57344, tokens), 64) << tokens;
    for (const int64_t rows : {4096, 6144, 8192, 10240, 16384}) {
      EXPECT_EQ(Rows(rows, tokens), 32) << rows << " rows, " << tokens << " tokens";
    }
  }
}

TEST(StreamingRowsTest, NarrowLayersTakeSmallBlocks) {
  for (const int64_t tokens : {1, 4, 16}) {
    EXPECT_EQ(Rows(k1B[1], tokens), 16) << tokens;
    EXPECT_EQ(Rows(k1B[3], tokens), 16) << tokens;
    EXPECT_EQ(Rows(k1B[0], tokens), 32) << tokens;
  }
}

int Int4Rows(int64_t rows, int64_t tokens) {
  return StreamingInt4Rows({.rows = rows, .tokens = tokens, .num_sms = kSms});
}

// With weights of 4 bits they count from one token on.
TEST(StreamingRowsTest, WeightsOf4BitsTakeTheBlocksOfMoreTokens) {
  for (const int64_t tokens : {1, 4, 16}) {
    EXPECT_EQ(Int4Rows(28672, tokens), 64) << tokens;
    EXPECT_EQ(Int4Rows(6144, tokens), 32) << tokens;
    EXPECT_EQ(Int4Rows(2048, tokens), 16) << tokens;
  }
}

TEST(StreamingRowsTest, WeightsOf4BitsTakeTwoBlocksOnEverySm) {
  for (const int64_t rows : {4096, 5120}) {
    EXPECT_EQ(Int4Rows(rows, 1), 16) << rows;
    EXPECT_EQ(Int4Rows(rows, 8), 16) << rows;
    EXPECT_EQ(Int4Rows(rows, 9), 32) << rows;
  }
}

TEST(StreamingRowsTest, ExpertsTakeLargeBlocksWhereThereAreEnoughOfThem) {
  const auto rows = [](int64_t rows, int64_t segment, int64_t items, bool int4) {
    return StreamingExpertRows(
        {.rows = rows, .segment = segment, .most_items = items, .num_sms = kSms}, int4);
  };
  EXPECT_EQ(rows(2048, 128, 8, false), 64);   // `down` of 128 experts of 768 columns
  EXPECT_EQ(rows(1536, 256, 8, false), 32);   // gate and up of them
  EXPECT_EQ(rows(4096, 1792, 8, false), 32);  // `down` of 8 experts of 14,336 columns
  EXPECT_EQ(rows(4096, 1792, 8, true), 64);
  EXPECT_EQ(rows(4096, 1792, 2, true), 32);  // two of them leave SMs without work
  EXPECT_EQ(rows(2048, 128, 1, false), 32);
}

// Every block is on the way from the start.
TEST(StreamingRowsTest, ALayerWithoutGatesRunsInOneWave) {
  for (const auto& model : {k1B, k8B}) {
    for (const int i : {0, 1, 3}) {
      for (const int64_t tokens : {1, 4, 8, 16}) {
        const int rows = Rows(model[i], tokens);
        EXPECT_LE(model[i] / rows, kSms * StreamingBlocksPerSm(rows)) << model[i];
      }
    }
  }
}

// A shape is taken whatever the machine: a part of a GPU, no rows to speak of.
TEST(StreamingRowsTest, OddShapesHaveAChoice) {
  for (const int sms : {1, 7, 132}) {
    for (const int64_t rows : {1, 15, 16, 17, 8192}) {
      const int choice = StreamingRows({.rows = rows, .tokens = 1, .num_sms = sms});
      EXPECT_TRUE(choice == 16 || choice == 32 || choice == 64)
          << rows << " rows, " << sms << " SMs";
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
