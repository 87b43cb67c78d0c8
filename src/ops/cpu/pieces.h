// ForEachPiece: work split into pieces, so that a core which is slower or busy with other work
// takes fewer. The assignment of pieces to threads may change from call to call: results must not
// depend on it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/thread_pool.h"

namespace tandem::ops::cpu {

struct Piece {
  int thread = 0;
  bool first_of_thread = true;  // the thread's first piece of this call
  int64_t begin = 0;
  int64_t end = 0;
};

// Below this many operations per thread, waking another thread takes longer than it saves.
constexpr double kShareOperations = 2e5;
// On average; more pieces balance the load better but cost more starts.
constexpr int64_t kPiecesPerThread = 8;

// Calls fn(const Piece&) for pieces that cover [0, count), each a multiple of `grain` long except
// the last. Runs on the caller's thread only when there are too few `operations` to share.
template <typename Fn>
void ForEachPiece(ThreadPool& pool, int64_t count, int64_t grain, double operations, Fn&& fn) {
  const int64_t grains = (count + grain - 1) / grain;
  if (grains <= 1 || pool.num_threads() == 1 || operations < kShareOperations) {
    if (count > 0) fn(Piece{0, true, 0, count});
    return;
  }
  const int64_t pieces = std::min(grains, pool.num_threads() * kPiecesPerThread);
  std::atomic<int64_t> next{0};
  pool.Run([&](int thread) {
    bool first = true;
    for (;;) {
      const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
      if (piece >= pieces) return;
      fn(Piece{thread, first, grains * piece / pieces * grain,
               std::min(grains * (piece + 1) / pieces * grain, count)});
      first = false;
    }
  });
}

}  // namespace tandem::ops::cpu
