// QkvRopeStore as one kernel: a block a row; a thread rotates a piece of a head and its partner
// half a head away, or copies a piece of a value.
#include <algorithm>

#include "ops/cuda/attention_elements.cuh"
#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/dependent_launch.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kMaxThreads = 512;

struct RopeJob {
  void* qkv = nullptr;
  void* pool = nullptr;  // the layer's first key of block 0
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* row_seq = nullptr;
  const int32_t* block_table = nullptr;
  int32_t max_blocks = 0;
  int32_t block_tokens = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t block_elements = 0;
  float inverse_key_scale = 1.0f;
  float inverse_value_scale = 1.0f;
};

// T: activations; Stored: the pool's elements.
template <typename T, typename Stored, int kCount>
__global__ void __launch_bounds__(kMaxThreads) QkvRopeStoreKernel(RopeJob job) {
  BeginKernel();
  const int row = blockIdx.x;
  const int seq = job.row_seq[row];
  if (seq < 0) return;  // padding
  const int position = job.positions[row];
  const int block = job.block_table[int64_t{seq} * job.max_blocks + position / job.block_tokens];
  const int dim = job.head_dim, half = dim / 2;
  const int64_t head_elements = int64_t{job.block_tokens} * dim;
  Stored* keys = static_cast<Stored*>(job.pool) + block * job.block_elements +
                 int64_t{position % job.block_tokens} * dim;
  Stored* values = keys + job.num_kv_heads * head_elements;
  T* heads = static_cast<T*>(job.qkv) + row * int64_t{job.num_heads + 2 * job.num_kv_heads} * dim;
  const float* cos = job.cos + int64_t{position} * half;
  const float* sin = job.sin + int64_t{position} * half;

  const int half_pieces = half / kCount, pieces = dim / kCount;
  const int rotations = (job.num_heads + job.num_kv_heads) * half_pieces;
  const int work = rotations + job.num_kv_heads * pieces;
  for (int i = threadIdx.x; i < work; i += blockDim.x) {
    if (i < rotations) {
      const int head = i / half_pieces, first = i % half_pieces * kCount;
      T* x = heads + int64_t{head} * dim + first;
      const Pack<T, kCount> a = LoadPack<T, kCount>(x), b = LoadPack<T, kCount>(x + half);
      float low[kCount], high[kCount];
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const float c = cos[first + e], s = sin[first + e];
        const float p = ToFloat(a.at[e]), q = ToFloat(b.at[e]);
        low[e] = fmaf(-q, s, p * c);
        high[e] = fmaf(p, s, q * c);
      }
      if (head < job.num_heads) {
        Pack<T, kCount> y, z;
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
          y.at[e] = FromFloat<T>(low[e]);
          z.at[e] = FromFloat<T>(high[e]);
        }
        StorePack<T, kCount>(x, y);
        StorePack<T, kCount>(x + half, z);
      } else {
        Pack<Stored, kCount> y, z;
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
          y.at[e] = FromFloat<Stored>(low[e] * job.inverse_key_scale);
          z.at[e] = FromFloat<Stored>(high[e] * job.inverse_key_scale);
        }
        Stored* key = keys + (head - job.num_heads) * head_elements + first;
        StorePack<Stored, kCount>(key, y);
        StorePack<Stored, kCount>(key + half, z);
      }
    } else {
      const int head = (i - rotations) / pieces, first = (i - rotations) % pieces * kCount;
      const T* x = heads + int64_t{job.num_heads + job.num_kv_heads + head} * dim + first;
      const Pack<T, kCount> a = LoadPack<T, kCount>(x);
      Pack<Stored, kCount> y;
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        y.at[e] = FromFloat<Stored>(ToFloat(a.at[e]) * job.inverse_value_scale);
      }
      StorePack<Stored, kCount>(values + head * head_elements + first, y);
    }
  }
}

template <typename T, typename Stored>
void Launch(const Context& context, const RopeJob& job, int64_t rows) {
  const auto launch = [&]<int kCount>() {
    const int64_t work =
        (job.num_heads + 3 * int64_t{job.num_kv_heads}) * (job.head_dim / 2 / kCount);
    const int64_t threads = std::clamp<int64_t>(CeilDiv(work, 32) * 32, 32, kMaxThreads);
    LaunchEarly(context, "QkvRopeStore", QkvRopeStoreKernel<T, Stored, kCount>,
                dim3(static_cast<unsigned>(rows)), threads, 0, job);
  };
  if (job.head_dim % 16 == 0) {
    launch.template operator()<8>();
  } else {
    launch.template operator()<1>();
  }
}

}  // namespace

void CudaOps::QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                           const KvPool& pool, int32_t layer) {
  const bool fp8 = pool.data.dtype == DType::kF8E4M3;
  TANDEM_CHECK(fp8 || pool.data.dtype == qkv.dtype,
               "keys and values are stored in the activations' type or in fp8");
  TANDEM_CHECK(pool.head_dim % 2 == 0, "a head is rotated in two halves");
  if (batch.num_rows == 0) return;
  RopeJob job;
  job.qkv = qkv.data;
  job.pool = static_cast<std::byte*>(pool.data.data) +
             int64_t{layer} * 2 * pool.num_kv_heads * pool.elements_per_head() *
                 static_cast<int64_t>(SizeOf(pool.data.dtype));
  job.cos = rope.cos.As<float>();
  job.sin = rope.sin.As<float>();
  job.positions = batch.positions;
  job.row_seq = batch.row_seq;
  job.block_table = batch.block_table;
  job.max_blocks = batch.max_blocks;
  job.block_tokens = pool.block_tokens;
  job.num_kv_heads = pool.num_kv_heads;
  job.num_heads = static_cast<int32_t>(qkv.dim(1) / pool.head_dim - 2 * pool.num_kv_heads);
  job.head_dim = pool.head_dim;
  job.block_elements = pool.elements_per_block();
  WithActivation(qkv.dtype, [&](auto element) {
    using T = decltype(element);
    if (fp8) {
      job.inverse_key_scale = 1.0f / pool.key_scale;
      job.inverse_value_scale = 1.0f / pool.value_scale;
      Launch<T, Fp8>(context_, job, batch.num_rows);
    } else {
      Launch<T, T>(context_, job, batch.num_rows);
    }
  });
}

}  // namespace tandem::ops::cuda
