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
// A thread takes this part of its share of what is left: pieces get smaller towards the end, where
// one thread waits for the last piece of another.
constexpr int64_t kPieceOfShare = 3;

// Calls fn(const Piece&) for pieces that cover [0, count), each a multiple of `grain` long except
// the last. Runs on the caller's thread only when there are too few `operations` to share.
template <typename Fn>
void ForEachPiece(ThreadPool& pool, int64_t count, int64_t grain, double operations, Fn&& fn) {
  const int64_t grains = (count + grain - 1) / grain;
  if (grains <= 1 || pool.num_threads() == 1 || operations < kShareOperations) {
    if (count > 0) fn(Piece{0, true, 0, count});
    return;
  }
  const int64_t parts = pool.num_threads() * kPieceOfShare;
  std::atomic<int64_t> next{0};
  pool.Run([&](int thread) {
    bool first = true;
    int64_t begin = next.load(std::memory_order_relaxed);
    while (begin < grains) {
      const int64_t end = begin + std::max<int64_t>((grains - begin) / parts, 1);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      fn(Piece{thread, first, begin * grain, std::min(end * grain, count)});
      first = false;
      begin = next.load(std::memory_order_relaxed);
    }
  });
}

}  // namespace tandem::ops::cpu
