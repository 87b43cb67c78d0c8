// What the kernels for few rows do with the results of a product beside storing them: a class for
// each Epilogue that needs more than LinearArgs. A thread has one output of some tokens. Before
// there are sums it loads what Store will need beside them: Ask loads what depends on nothing, and
// Prepare, called once other loads are under way, what depends on that.
#pragma once

#include "ops/cuda/linear/linear_fragments.cuh"
#include "ops/cuda/linear/rope_job.cuh"

namespace tandem::ops::cuda {

struct NoJob {};

// Epilogue::kAdded: a result is added to the residual, and what the product that takes the sum's
// norm next wants of it is stored.
struct AddJob {
  void* residual = nullptr;           // [tokens, args.rows] of T
  const void* norm_weight = nullptr;  // [args.rows] of T
  // [tokens, args.rows]: the sum times the norm's weight, of T or as a factor (FactorOf).
  void* rows = nullptr;
  bool rows_are_factors = false;
  unsigned long long* squares = nullptr;  // [tokens]: NormedRows::squares
};

// kLanes (16 or 32): so many neighbouring threads of a warp have neighbouring outputs of one token.
template <typename T, int kLanes>
class AddedEpilogue {
 public:
  struct Early {
    T residual;
    T weight;
  };
  using Asked = Early;

  __device__ AddedEpilogue(const AddJob& job, const LinearArgs& args, int output)
      : job_(job), width_(args.rows), column_(output) {}

  __device__ Asked Ask(int token) const {
    return {static_cast<const T*>(job_.residual)[At(token)],
            static_cast<const T*>(job_.norm_weight)[column_]};
  }
  __device__ Early Prepare(const Asked& asked, int /*token*/) const { return asked; }
  // By all of the kLanes threads at once.
  __device__ void Store(const Early& early, int token, float result) const {
    const T sum = FromFloat<T>(ToFloat(early.residual) + Rounded<T>(result));
    static_cast<T*>(job_.residual)[At(token)] = sum;
    const float value = ToFloat(sum);
    const T row = FromFloat<T>(value * ToFloat(early.weight));
    if (job_.rows_are_factors) {
      static_cast<Fp16*>(job_.rows)[At(token)] = FactorOf<T>(ToFloat(row));
    } else {
      static_cast<T*>(job_.rows)[At(token)] = row;
    }
    // In floats over 16 columns, whatever the size of blocks, so that a row's bits do not depend on
    // the other rows.
    const uint32_t first = threadIdx.x % 32 / kLanes * kLanes;
    const uint32_t lanes = ~0U >> (32 - kLanes) << first;
    float squares = value * value;
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      squares += __shfl_xor_sync(lanes, squares, distance);
    }
    unsigned long long units = __float2ull_rn(squares * (1.0f / kSquaresUnit));
    if constexpr (kLanes == 32) units += __shfl_xor_sync(lanes, units, 16);
    if (threadIdx.x % kLanes == 0) atomicAdd(&job_.squares[token], units);
  }

 private:
  __device__ int64_t At(int token) const { return int64_t{token} * width_ + column_; }

  const AddJob& job_;
  int width_;
  int column_;
};

// Epilogue::kTurned: queries, keys and values are turned and stored as by QkvRopeStore, with the
// same bits.
template <typename T>
class TurnedEpilogue {
 public:
  struct Asked {
    int seq = -1;  // of padding, which is not stored
    int position = 0;
    int turn = 0;
  };
  struct Early {
    float cos = 1.0f;
    float sin = 0.0f;
    int block = -1;  // of the pool; -1: of padding
    int position = 0;
  };

  __device__ TurnedEpilogue(const RopeJob& job, const LinearArgs& args, int output)
      : job_(job), head_(output / args.half_head), pair_(output % args.half_head) {}

  __device__ Asked Ask(int token) const {
    const int position = job_.positions[token];
    return {job_.row_seq[token], position, job_.turns == nullptr ? position : job_.turns[token]};
  }
  __device__ Early Prepare(const Asked& asked, int /*token*/) const {
    Early early;
    if (asked.seq < 0) return early;
    if (!IsValue()) {
      const int64_t at = int64_t{asked.turn} * job_.pairs + pair_;
      early.cos = job_.cos[at];
      early.sin = job_.sin[at];
    }
    early.position = asked.position;
    early.block = job_.BlockOf(asked.seq, asked.position);
    return early;
  }
  __device__ void Store(const Early& early, int token, float x, float y) const {
    if (early.block < 0) return;
    if (!IsValue()) TurnPair(early.cos, early.sin, x, y);
    const int stored_head = head_ - job_.num_heads;  // keys, then values
    if (stored_head < 0) {
      const float factor =
          job_.query_factors == nullptr ? 1.0f : job_.query_factors[early.position];
      const int64_t heads = job_.num_heads + 2 * job_.num_kv_heads;
      StorePair(static_cast<T*>(job_.qkv) + (token * heads + head_) * job_.head_dim, factor, x, y);
    } else if (job_.fp8_pool) {
      StoreInPool<Fp8>(early, stored_head, x, y);
    } else {
      StoreInPool<T>(early, stored_head, x, y);
    }
  }

 private:
  __device__ bool IsValue() const { return head_ >= job_.num_heads + job_.num_kv_heads; }
  template <typename Stored>
  __device__ void StorePair(Stored* head, float factor, float x, float y) const {
    head[pair_] = FromFloat<Stored>(x * factor);
    head[pair_ + job_.head_dim / 2] = FromFloat<Stored>(y * factor);
  }
  template <typename Stored>
  __device__ void StoreInPool(const Early& early, int stored_head, float x, float y) const {
    const float factor = StoreFactor<Stored>(IsValue() ? job_.value_scales : job_.key_scales,
                                             stored_head % job_.num_kv_heads);
    StorePair(static_cast<Stored*>(job_.pool) + job_.PlaceIn(early.block, early.position) +
                  stored_head * job_.head_elements(),
              factor, x, y);
  }

  const RopeJob& job_;
  int head_;
  int pair_;
};

// Of the others.
struct NoEpilogue {
  struct Early {};
  struct Asked {};
};

template <Epilogue kEpilogue>
using EpilogueJob =
    std::conditional_t<kEpilogue == Epilogue::kTurned, RopeJob,
                       std::conditional_t<kEpilogue == Epilogue::kAdded, AddJob, NoJob>>;
// kOutputs: of a block, whose threads have them one after another, token after token.
template <typename T, Epilogue kEpilogue, int kOutputs>
using EpilogueOf = std::conditional_t<
    kEpilogue == Epilogue::kTurned, TurnedEpilogue<T>,
    std::conditional_t<kEpilogue == Epilogue::kAdded,
                       AddedEpilogue<T, (kOutputs % 32 == 0 ? 32 : 16)>, NoEpilogue>>;
template <Epilogue kEpilogue>
constexpr bool kHasEpilogue = kEpilogue == Epilogue::kTurned || kEpilogue == Epilogue::kAdded;

}  // namespace tandem::ops::cuda
