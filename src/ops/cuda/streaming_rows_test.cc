// The blocks of products with few tokens, for the layers of Llama on a GPU of 132 SMs.
#include "ops/cuda/streaming_rows.h"

#include <gtest/gtest.h>

namespace tandem::ops::cuda {
namespace {

constexpr int kSms = 132;

int Rows(int64_t rows, int64_t cols, int64_t weight_bytes, int64_t tokens) {
  return StreamingRows({.rows = rows,
                        .cols = cols,
                        .weight_bytes = weight_bytes,
                        .tokens = tokens,
                        .num_sms = kSms});
}

struct Layer {
  const char* name;
  int64_t rows, cols;
};

// qkv, out, gate and up, down.
constexpr Layer k1B[] = {
    {"qkv", 3072, 2048}, {"out", 2048, 2048}, {"gate_up", 16384, 2048}, {"down", 2048, 8192}};
constexpr Layer k8B[] = {
    {"qkv", 6144, 4096}, {"out", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};
constexpr Layer k70B[] = {
    {"qkv", 10240, 8192}, {"out", 8192, 8192}, {"gate_up", 57344, 8192}, {"down", 8192, 28672}};

TEST(StreamingRowsTest, OneTokenTakesSmallBlocks) {
  for (const auto& model : {k1B, k8B, k70B}) {
    for (int i = 0; i < 4; ++i) {
      for (const int64_t weight_bytes : {1, 2}) {
        EXPECT_EQ(Rows(model[i].rows, model[i].cols, weight_bytes, 1), 16) << model[i].name;
      }
      // Twice the bytes of weights for the same activations.
      EXPECT_EQ(Rows(model[i].rows, model[i].cols, 2, 4), 16) << model[i].name;
    }
  }
}

// The activations of small blocks would take more from L2 than it gives.
TEST(StreamingRowsTest, MoreTokensTakeLargerBlocks) {
  for (const auto& model : {k8B, k70B}) {
    for (int i = 0; i < 4; ++i) {
      const auto& [name, rows, cols] = model[i];
      EXPECT_EQ(Rows(rows, cols, 1, 4), 32) << name;
      EXPECT_EQ(Rows(rows, cols, 1, 5), 32) << name;
      EXPECT_EQ(Rows(rows, cols, 2, 8), 32) << name;
      EXPECT_EQ(Rows(rows, cols, 1, 16), 64) << name;
      // 64 blocks of 64 rows leave half of the SMs without work.
      EXPECT_EQ(Rows(rows, cols, 1, 8), rows >= 6144 ? 64 : 32) << name;
      EXPECT_EQ(Rows(rows, cols, 2, 16), rows >= 6144 ? 64 : 32) << name;
    }
  }
}

TEST(StreamingRowsTest, NarrowLayersKeepSmallBlocks) {
  for (const int64_t weight_bytes : {1, 2}) {
    for (const int64_t tokens : {1, 4}) {
      EXPECT_EQ(Rows(2048, 2048, weight_bytes, tokens), 16) << tokens;
      EXPECT_EQ(Rows(2048, 8192, weight_bytes, tokens), 16) << tokens;
    }
  }
}

// Every block is on the way from the start.
TEST(StreamingRowsTest, ALayerWithoutGatesRunsInOneWave) {
  for (const auto& model : {k1B, k8B}) {
    for (const int i : {0, 1, 3}) {
      for (const int64_t tokens : {1, 4, 8, 16}) {
        const int rows = Rows(model[i].rows, model[i].cols, 1, tokens);
        EXPECT_LE(model[i].rows / rows, kSms * StreamingBlocksPerSm(rows)) << model[i].name;
      }
    }
  }
}

// A shape is taken whatever the machine: a part of a GPU, no rows to speak of.
TEST(StreamingRowsTest, OddShapesHaveAChoice) {
  for (const int sms : {1, 7, 132}) {
    for (const int64_t rows : {1, 15, 16, 17, 8192}) {
      const int choice =
          StreamingRows({.rows = rows, .cols = 64, .weight_bytes = 1, .tokens = 1, .num_sms = sms});
      EXPECT_TRUE(choice == 16 || choice == 32 || choice == 64)
          << rows << " rows, " << sms << " SMs";
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
