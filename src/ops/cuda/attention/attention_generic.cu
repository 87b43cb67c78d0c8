// Attention for latents and for head sizes without a tile kernel: one warp per row and head, one
// lane per key. Simple and slow; a row's arithmetic depends on that row alone.
#include "ops/cuda/attention/attention_inputs.cuh"
#include "ops/cuda/attention/attention_params.cuh"
#include "ops/cuda/device/context.cuh"
#include "ops/cuda/device/elements.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPieces = kMaxGenericHeadDim / 32;  // most elements of a head in one lane

template <typename T, typename Stored>
__global__ void __launch_bounds__(32 * kWarps)
    GenericAttentionKernel(const __grid_constant__ AttentionParams params) {
  __shared__ float queries[kWarps][kMaxGenericHeadDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int dim = params.head_dim, value_dim = params.value_dim;
  const int num_heads = params.num_kv_heads * params.group;
  const int64_t index = int64_t{blockIdx.x} * kWarps + warp;
  const auto row = static_cast<int>(index / num_heads);
  const int head = static_cast<int>(index % num_heads);
  if (row >= params.num_rows) return;
  T* out = static_cast<T*>(params.out) + row * params.out_stride + int64_t{head} * value_dim;
  const int seq = params.row_seq[row];
  if (seq < 0) {
    for (int i = lane; i < value_dim; i += 32) out[i] = FromFloat<T>(0.0f);
    return;
  }
  const int context = params.context_len[seq];
  const int last_key =
      max(context - (params.query_start[seq + 1] - row), PrefixLen(params, seq, context) - 1);
  const int position = context - (params.query_start[seq + 1] - row);
  const int first_key = params.seen.FirstKey(max(position, 0));
  const ScoreRule rule(params, KeyScale<Stored>(params, head / params.group));
  const float slope = params.slopes == nullptr ? 0.0f : params.slopes[head];
  const int32_t* table = params.block_table + int64_t{seq} * params.max_blocks;
  const auto* pool = static_cast<const Stored*>(params.pool);
  const auto key_row = [&](int key) {
    const int block = key / params.block_tokens;
    return int64_t{table[block]} * params.block_rows +
           int64_t{head / params.group} * params.block_tokens + key % params.block_tokens;
  };
  const T* query =
      static_cast<const T*>(params.qkv) + row * params.qkv_stride + int64_t{head} * dim;
  float* q = queries[warp];
  for (int i = lane; i < dim; i += 32) q[i] = ToFloat(query[i]);
  __syncwarp();

  float output[kPieces] = {};
  float max = -INFINITY, sum = 0.0f;
  for (int first = first_key / 32 * 32; first <= last_key; first += 32) {
    const int key = first + lane;
    float score = -INFINITY;
    int64_t pool_row = 0;
    if (key >= first_key && key <= last_key) {
      pool_row = key_row(key);
      score = 0.0f;
      for (int i = 0; i < dim; ++i) score = fmaf(q[i], ToFloat(pool[pool_row * dim + i]), score);
      score = rule.Apply(score, key - position, first_key - position, slope);
    }
    float new_max = fmaxf(max, score);
    for (int distance = 16; distance > 0; distance /= 2) {
      new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, distance));
    }
    const float factor = exp2f(max - new_max);
    const float weight = exp2f(score - new_max);
    max = new_max;
    sum = fmaf(sum, factor, weight);
    for (int i = 0; i < kPieces; ++i) output[i] *= factor;
    const int end = min(32, last_key + 1 - first);
    for (int j = ::max(first_key - first, 0); j < end; ++j) {
      const float w = __shfl_sync(~0u, weight, j);
      const Stored* value =
          pool + (__shfl_sync(~0u, pool_row, j) + params.value_rows) * int64_t{dim};
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int element = lane + 32 * i;
        if (element < value_dim) output[i] = fmaf(w, ToFloat(value[element]), output[i]);
      }
    }
  }
  const float value_scale = ValueScale<Stored>(params, head / params.group);
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  sum = SumWithSink(params, head, max, sum);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int element = lane + 32 * i;
    if (element < value_dim) out[element] = FromFloat<T>(output[i] * (value_scale / sum));
  }
}

}  // namespace

template <typename T, typename Stored>
void LaunchGenericAttention(const Context& context, const AttentionParams& params) {
  const int64_t rows = int64_t{params.num_rows} * params.num_kv_heads * params.group;
  GenericAttentionKernel<T, Stored>
      <<<static_cast<unsigned>(CeilDiv(rows, kWarps)), 32 * kWarps, 0, context.stream>>>(params);
  CheckLaunch("PagedAttention");
}

template void LaunchGenericAttention<Bf16, Bf16>(const Context&, const AttentionParams&);
template void LaunchGenericAttention<Fp16, Fp16>(const Context&, const AttentionParams&);
template void LaunchGenericAttention<Bf16, Fp8>(const Context&, const AttentionParams&);
template void LaunchGenericAttention<Fp16, Fp8>(const Context&, const AttentionParams&);

}  // namespace tandem::ops::cuda
