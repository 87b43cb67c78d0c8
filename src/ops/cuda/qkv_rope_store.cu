// QkvRopeStore as one kernel: one block per row; a thread rotates a piece of a head and its partner
// half a head away (half of what turns of it; half of half a head, where the halves have positions
// of their own), or copies a piece of a value or of what does not turn of a key. Heads that are
// normed first are so by the threads that rotate them, if these are 2, 4, 8, ... of a warp.
#include <algorithm>

#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/linear/rope_job.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kMaxThreads = 512;

// Norms a head of `dim` elements, of which this thread has those from `pair` on and as many half a
// head further: by root mean square, rounded to T. The head's threads are `lanes` neighbours.
template <typename T, int kCount>
__device__ inline void NormHead(const HeadNormJob& job, int dim, int pair, int lanes,
                                float (&low)[kCount], float (&high)[kCount]) {
  float squares = 0.0f;
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    squares = fmaf(low[e], low[e], fmaf(high[e], high[e], squares));
  }
  const uint32_t first = threadIdx.x % 32 / lanes * lanes;
  const uint32_t mask = ~0U >> (32 - lanes) << first;
  for (int distance = 1; distance < lanes; distance *= 2) {
    squares += __shfl_xor_sync(mask, squares, distance);
  }
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(dim) + job.epsilon);
  const T* const weight = static_cast<const T*>(job.weight);
  const auto normed = [&](float x, int column) {
    x *= inverse;
    if (weight != nullptr) x *= ToFloat(weight[column]) + job.weight_offset;
    return static_cast<float>(FromFloat<T>(x));
  };
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    low[e] = normed(low[e], pair + e);
    high[e] = normed(high[e], dim / 2 + pair + e);
  }
}

// T: activations; Stored: the pool's elements; kParts: of a head, each turned as a whole.
template <typename T, typename Stored, int kCount, int kParts, bool kNormed>
__global__ void __launch_bounds__(kMaxThreads) QkvRopeStoreKernel(RopeJob job) {
  BeginKernel();
  const int row = blockIdx.x;
  const int seq = job.row_seq[row];
  if (seq < 0) return;  // padding
  const int position = job.positions[row];
  const int dim = job.head_dim, half = job.pairs;
  const int64_t head_elements = job.head_elements();
  Stored* keys = static_cast<Stored*>(job.pool) + job.PlaceIn(job.BlockOf(seq, position), position);
  Stored* values = keys + job.num_kv_heads * head_elements;
  T* heads = static_cast<T*>(job.qkv) + row * int64_t{job.num_heads + 2 * job.num_kv_heads} * dim;
  int64_t turns[kParts] = {position};  // where the parts' angles begin in the tables
  if (job.turns != nullptr) turns[0] = job.turns[row];
  if constexpr (kParts == 2) turns[1] = job.second_positions[row];
#pragma unroll
  for (int64_t& turn : turns) turn *= half;

  const int half_pieces = half / kCount, pieces = dim / kCount;
  const int head_pieces = kParts * half_pieces;  // of a head, each with its partner
  const int rotations = (job.num_heads + job.num_kv_heads) * head_pieces;
  const int still_pieces = pieces - 2 * head_pieces;  // of a head; queries keep them where they are
  const int copied_pieces = still_pieces + pieces;    // of a kv head: of its key, then its value
  const float query_factor = job.query_factors == nullptr ? 1.0f : job.query_factors[position];
  const int copies = job.num_kv_heads * copied_pieces;
  // What does not turn of a query changes only by its factor.
  const int scaled = job.query_factors == nullptr ? 0 : job.num_heads * still_pieces;
  const int work = rotations + copies + scaled;
  for (int i = threadIdx.x; i < work; i += blockDim.x) {
    if (i < rotations) {
      const int head = i / head_pieces;
      const int part = kParts == 1 ? 0 : i % head_pieces / half_pieces;
      const int pair = i % half_pieces * kCount, first = part * 2 * half + pair;
      const int64_t turn = (part == 0 ? turns[0] : turns[kParts - 1]) + pair;
      T* x = heads + int64_t{head} * dim + first;
      const Pack<T, kCount> a = LoadPack<T, kCount>(x), b = LoadPack<T, kCount>(x + half);
      float low[kCount], high[kCount];
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        low[e] = ToFloat(a.at[e]);
        high[e] = ToFloat(b.at[e]);
      }
      if constexpr (kNormed) {
        const HeadNormJob& norm = head < job.num_heads ? job.query_norm : job.key_norm;
        NormHead<T>(norm, dim, pair, head_pieces, low, high);
      }
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        TurnPair(job.cos[turn + e], job.sin[turn + e], low[e], high[e]);
      }
      if (head < job.num_heads) {
        Pack<T, kCount> y, z;
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
          y.at[e] = FromFloat<T>(low[e] * query_factor);
          z.at[e] = FromFloat<T>(high[e] * query_factor);
        }
        StorePack<T, kCount>(x, y);
        StorePack<T, kCount>(x + half, z);
      } else {
        const float factor = StoreFactor<Stored>(job.key_scales, head - job.num_heads);
        Pack<Stored, kCount> y, z;
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
          y.at[e] = FromFloat<Stored>(low[e] * factor);
          z.at[e] = FromFloat<Stored>(high[e] * factor);
        }
        Stored* key = keys + (head - job.num_heads) * head_elements + first;
        StorePack<Stored, kCount>(key, y);
        StorePack<Stored, kCount>(key + half, z);
      }
    } else if (i >= rotations + copies) {
      const int index = i - rotations - copies;
      T* const x = heads + int64_t{index / still_pieces} * dim +
                   (index % still_pieces + 2 * head_pieces) * kCount;
      Pack<T, kCount> values = LoadPack<T, kCount>(x);
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        values.at[e] = FromFloat<T>(ToFloat(values.at[e]) * query_factor);
      }
      StorePack<T, kCount>(x, values);
    } else {
      const int head = (i - rotations) / copied_pieces, piece = (i - rotations) % copied_pieces;
      const bool of_key = piece < still_pieces;
      const int first = (of_key ? piece + 2 * head_pieces : piece - still_pieces) * kCount;
      const int from = job.num_heads + (of_key ? 0 : job.num_kv_heads) + head;
      const Pack<T, kCount> a = LoadPack<T, kCount>(heads + int64_t{from} * dim + first);
      const float factor = StoreFactor<Stored>(of_key ? job.key_scales : job.value_scales, head);
      Pack<Stored, kCount> y;
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        y.at[e] = FromFloat<Stored>(ToFloat(a.at[e]) * factor);
      }
      StorePack<Stored, kCount>((of_key ? keys : values) + head * head_elements + first, y);
    }
  }
}

template <typename T, typename Stored, int kCount, int kParts, bool kNormed>
void LaunchKernel(const Context& context, const RopeJob& job, int64_t rows) {
  const int64_t work =
      (job.num_heads + 3 * int64_t{job.num_kv_heads}) * (job.head_dim / 2 / kCount);
  const int64_t threads = std::clamp<int64_t>(CeilDiv(work, 32) * 32, 32, kMaxThreads);
  LaunchEarly(context, "QkvRopeStore", QkvRopeStoreKernel<T, Stored, kCount, kParts, kNormed>,
              dim3(static_cast<unsigned>(rows)), threads, 0, job);
}

// Columns that a thread rotates at a time, if heads are divided into such.
constexpr int kPieceColumns = 8;
bool HasPieces(const RopeJob& job) {
  return job.head_dim % kPieceColumns == 0 && job.pairs % kPieceColumns == 0;
}

template <typename T, typename Stored, int kParts>
void LaunchParts(const Context& context, const RopeJob& job, int64_t rows) {
  HasPieces(job) ? LaunchKernel<T, Stored, kPieceColumns, kParts, false>(context, job, rows)
                 : LaunchKernel<T, Stored, 1, kParts, false>(context, job, rows);
}

template <typename T, typename Stored>
void LaunchRope(const Context& context, const RopeJob& job, int64_t rows, bool normed) {
  if (normed) return LaunchKernel<T, Stored, kPieceColumns, 1, true>(context, job, rows);
  !job.halves ? LaunchParts<T, Stored, 1>(context, job, rows)
              : LaunchParts<T, Stored, 2>(context, job, rows);
}

void LaunchRope(const Context& context, const RopeJob& job, DType activations, int64_t rows,
                bool normed) {
  WithActivation(activations, [&](auto element) {
    using T = decltype(element);
    job.fp8_pool ? LaunchRope<T, Fp8>(context, job, rows, normed)
                 : LaunchRope<T, T>(context, job, rows, normed);
  });
}

bool IsOfEachHead(const HeadNorms::Columns& columns, int64_t head_dim) {
  const Norm& norm = columns.norm;
  return norm.kind == Norm::Kind::kRms && norm.bias.empty() && columns.width == head_dim &&
         (norm.weight.empty() || norm.weight.NumElements() == head_dim);
}
HeadNormJob JobOf(const Norm& norm) { return {norm.weight.data, norm.epsilon, norm.weight_offset}; }

// Checks that the shapes belong together.
RopeJob RopeJobOf(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                  const KvGroup& kv, int32_t layer) {
  const bool fp8 = kv.data.dtype == DType::kF8E4M3;
  TANDEM_CHECK(fp8 || kv.data.dtype == qkv.dtype,
               "keys and values are stored in the activations' type or in fp8");
  TANDEM_CHECK(fp8 || (kv.key_scales.empty() && kv.value_scales.empty()),
               "scales of keys and values are of fp8 alone");
  const int64_t pairs = rope.cos.empty() ? 0 : rope.cos.dim(1);
  const bool in_halves = rope.halves;
  TANDEM_CHECK(in_halves ? 4 * pairs == kv.head_dim : 2 * pairs <= kv.head_dim,
               "the rotary tables are for heads of another size");
  TANDEM_CHECK(kv.latent_dim == 0, "latents are stored by LatentRopeStore");
  RopeJob job;
  job.qkv = qkv.data;
  job.fp8_pool = fp8;
  job.pool = static_cast<std::byte*>(kv.data.data) +
             int64_t{layer} * 2 * kv.num_kv_heads * kv.elements_per_head() *
                 static_cast<int64_t>(SizeOf(kv.data.dtype));
  job.cos = rope.cos.As<float>();
  job.sin = rope.sin.As<float>();
  if (!rope.query_factors.empty()) job.query_factors = rope.query_factors.As<float>();
  job.positions = batch.positions;
  job.second_positions = batch.second_positions;
  job.halves = rope.halves;
  job.turns = batch.turns;
  job.row_seq = batch.row_seq;
  job.block_table = batch.block_table;
  job.max_blocks = batch.max_blocks;
  job.block_tokens = kv.block_tokens;
  job.num_kv_heads = kv.num_kv_heads;
  job.num_heads = static_cast<int32_t>(qkv.dim(1) / kv.head_dim - 2 * kv.num_kv_heads);
  job.head_dim = kv.head_dim;
  job.pairs = static_cast<int32_t>(pairs);
  job.block_elements = kv.elements_per_block();
  job.key_scales = kv.key_scales_of(layer);
  job.value_scales = kv.value_scales_of(layer);
  return job;
}

}  // namespace

void CudaOps::QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                           const KvGroup& kv, int32_t layer) {
  if (batch.num_rows == 0) return;
  LaunchRope(context_, RopeJobOf(qkv, rope, batch, kv, layer), qkv.dtype, batch.num_rows, false);
}

void CudaOps::LinearRopeStore(const Tensor& x, const LinearWeight& weight, const Tensor& qkv,
                              const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                              int32_t layer) {
  if (linear_.RunTurned(x, weight, qkv, RopeJobOf(qkv, rope, batch, kv, layer))) return;
  Ops::LinearRopeStore(x, weight, qkv, rope, batch, kv, layer);
}

void CudaOps::NormLinearRopeStore(const NormedRows& x, const LinearWeight& weight,
                                  const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                                  const KvGroup& kv, int32_t layer) {
  if (!LinearRunner::AreFew(x.rows)) {
    return Ops::NormLinearRopeStore(x, weight, qkv, rope, batch, kv, layer);
  }
  if (x.HasSum() &&
      linear_.RunTurned(FewRows(x), weight, qkv, RopeJobOf(qkv, rope, batch, kv, layer))) {
    return;
  }
  AddNorm(x);
  LinearRopeStore(x.rows, weight, qkv, rope, batch, kv, layer);
}

void CudaOps::NormQkvRopeStore(const Tensor& qkv, const HeadNorms& norms, const RopeTable& rope,
                               const BatchView& batch, const KvGroup& kv, int32_t layer) {
  if (batch.num_rows == 0) return;
  RopeJob job = RopeJobOf(qkv, rope, batch, kv, layer);
  const int lanes = job.pairs / kPieceColumns;  // of a head
  const bool fits = HasPieces(job) && 2 * job.pairs == job.head_dim && !job.halves && lanes <= 32 &&
                    (lanes & (lanes - 1)) == 0 && IsOfEachHead(norms.queries, job.head_dim) &&
                    IsOfEachHead(norms.keys, job.head_dim);
  if (!fits) return Ops::NormQkvRopeStore(qkv, norms, rope, batch, kv, layer);
  job.query_norm = JobOf(norms.queries.norm);
  job.key_norm = JobOf(norms.keys.norm);
  LaunchRope(context_, job, qkv.dtype, batch.num_rows, true);
}

}  // namespace tandem::ops::cuda
