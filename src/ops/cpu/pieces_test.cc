#include "ops/cpu/pieces.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::ops::cpu {
namespace {

TEST(PiecesTest, EachIndexIsInOnePieceAndPiecesBeginAtWholeGrains) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads, false);
    for (const int64_t count : {0, 1, 4, 5, 63, 1000}) {
      for (const int64_t grain : {1, 4, 16}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        ForEachPiece(pool, count, grain, 1e9, [&](const Piece& piece) {
          EXPECT_EQ(piece.begin % grain, 0);
          EXPECT_LT(piece.thread, threads);
          for (int64_t i = piece.begin; i < piece.end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const std::atomic<int>& times : seen) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(PiecesTest, LittleWorkIsOnePieceOfTheCaller) {
  ThreadPool pool(2, false);
  int pieces = 0;
  ForEachPiece(pool, 100, 4, 10.0, [&](const Piece& piece) {
    ++pieces;
    EXPECT_EQ(piece.end, 100);
    EXPECT_TRUE(piece.first_of_thread);
  });
  EXPECT_EQ(pieces, 1);
}

}  // namespace
}  // namespace tandem::ops::cpu
