// What QkvRopeStore does, as its kernels take it: where queries, keys and values are, how they turn
// and where they are stored.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device/elements.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

struct HeadNormJob {
  const void* weight = nullptr;  // [head_dim] of the activations' type; null: ones
  float epsilon = 0.0f;
  float weight_offset = 0.0f;
};

struct RopeJob {
  void* qkv = nullptr;
  void* pool = nullptr;  // the layer's first key of block 0
  bool fp8_pool = false;
  const float* cos = nullptr;
  const float* sin = nullptr;
  const float* query_factors = nullptr;  // of each position; null: all are 1
  const int32_t* positions = nullptr;
  const int32_t* second_positions = nullptr;  // of halves
  bool halves = false;
  const int32_t* turns = nullptr;  // null: positions
  const int32_t* row_seq = nullptr;
  const int32_t* block_table = nullptr;
  int32_t max_blocks = 0;
  int32_t block_tokens = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t pairs = 0;  // of a part of a head
  int64_t block_elements = 0;
  const float* key_scales = nullptr;  // the layer's, of each kv head; null: all are 1
  const float* value_scales = nullptr;
  HeadNormJob query_norm = {};
  HeadNormJob key_norm = {};

  __host__ __device__ int64_t head_elements() const { return int64_t{block_tokens} * head_dim; }
  // The pool's block of a row of this sequence, and where in the pool the key of its first kv head
  // is.
  __device__ int BlockOf(int seq, int position) const {
    return block_table[int64_t{seq} * max_blocks + position / block_tokens];
  }
  __device__ int64_t PlaceIn(int block, int position) const {
    return block * block_elements + int64_t{position % block_tokens} * head_dim;
  }
};

// What an element is multiplied with to be stored; only pools in fp8 have scales.
template <typename Stored>
__device__ inline float StoreFactor(const float* scales, int kv_head) {
  if constexpr (std::is_same_v<Stored, Fp8>) {
    if (scales != nullptr) return 1.0f / scales[kv_head];
  }
  return 1.0f;
}

// The elements x and y of a head, half of it apart, by cosine c and sine s.
__device__ inline void TurnPair(float c, float s, float& x, float& y) {
  const float p = x, q = y;
  x = fmaf(-q, s, p * c);
  y = fmaf(p, s, q * c);
}

}  // namespace tandem::ops::cuda
