// Results::kTurned: the kernel of the product turns queries and keys and stores keys and values, as
// QkvRopeStore does, with the same bits. A thread has both elements that turn with each other.
#pragma once

#include "ops/cuda/linear_fragments.cuh"
#include "ops/cuda/rope_job.cuh"

namespace tandem::ops::cuda {

// What a kernel has to know beside LinearArgs.
struct NoJob {};
template <Results kResults>
using ResultsJob = std::conditional_t<kResults == Results::kTurned, RopeJob, NoJob>;

// An output of the product, for one token.
struct Turn {
  float cos = 1.0f;
  float sin = 0.0f;
  int64_t place = -1;  // RopeJob::PlaceOf; -1: of padding, which is not stored
};

// An output of the product, for all tokens.
class TurnedOutput {
 public:
  __device__ TurnedOutput(const RopeJob& job, int output)
      : head_(output / (job.head_dim / 2)), pair_(output % (job.head_dim / 2)) {}

  // Its loads depend on each other: call it while the weights are on their way.
  __device__ Turn TurnOf(const RopeJob& job, int token) const {
    Turn turn;
    const int seq = job.row_seq[token];
    const int position = job.positions[token];
    const int64_t angle = job.turns == nullptr ? position : job.turns[token];
    if (seq < 0) return turn;
    if (!IsValue(job)) {
      turn.cos = job.cos[angle * job.pairs + pair_];
      turn.sin = job.sin[angle * job.pairs + pair_];
    }
    turn.place = job.PlaceOf(seq, position);
    return turn;
  }

  // x, y: the results, rounded to T.
  template <typename T>
  __device__ void Store(const RopeJob& job, const Turn& turn, int token, float x, float y) const {
    if (turn.place < 0) return;
    if (!IsValue(job)) TurnPair(turn.cos, turn.sin, x, y);
    const int half = job.head_dim / 2;
    const int stored_head = head_ - job.num_heads;  // keys, then values
    if (stored_head < 0) {
      const float factor =
          job.query_factors == nullptr ? 1.0f : job.query_factors[job.positions[token]];
      const int64_t heads = job.num_heads + 2 * job.num_kv_heads;
      T* const to = static_cast<T*>(job.qkv) + (token * heads + head_) * job.head_dim + pair_;
      to[0] = FromFloat<T>(x * factor);
      to[half] = FromFloat<T>(y * factor);
    } else if (job.fp8_pool) {
      StoreInPool<Fp8>(job, turn, stored_head, x, y);
    } else {
      StoreInPool<T>(job, turn, stored_head, x, y);
    }
  }

 private:
  __device__ bool IsValue(const RopeJob& job) const {
    return head_ >= job.num_heads + job.num_kv_heads;
  }
  template <typename Stored>
  __device__ void StoreInPool(const RopeJob& job, const Turn& turn, int stored_head, float x,
                              float y) const {
    const float factor = StoreFactor<Stored>(IsValue(job) ? job.value_scales : job.key_scales,
                                             stored_head % job.num_kv_heads);
    Stored* const to =
        static_cast<Stored*>(job.pool) + turn.place + stored_head * job.head_elements() + pair_;
    to[0] = FromFloat<Stored>(x * factor);
    to[job.head_dim / 2] = FromFloat<Stored>(y * factor);
  }

  int head_;
  int pair_;
};

}  // namespace tandem::ops::cuda
