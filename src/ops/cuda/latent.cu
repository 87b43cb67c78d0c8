// What multi-head latent attention has beyond attention itself: products of each head by itself,
// and the store of latents with the rotation beside them. Plain code: a row's arithmetic depends on
// that row alone.
#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/linear/pack.cuh"

namespace tandem::ops::cuda {
namespace {

// Of HeadLinear: a block computes kRows rows by kOutputs outputs of one head, from kInputs inputs
// at a time; a thread one output of kRowsOfThread rows.
constexpr int kRows = 16;
constexpr int kOutputs = 64;
constexpr int kInputs = 32;
constexpr int kRowsOfThread = 8;
constexpr int kThreads = kOutputs * (kRows / kRowsOfThread);

// Rows and heads are `..._stride` and `..._head` elements apart.
template <typename T>
struct HeadProduct {
  const T* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_head = 0;
  const T* weight = nullptr;
  int64_t weight_pitch = 0;  // from row to row
  int64_t weight_head = 0;
  T* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_head = 0;
  int32_t rows = 0;
  int32_t inputs = 0;
  int32_t outputs = 0;
};

// Of the tile that begins at `first`; zeros beyond `rows` and `columns`. Consecutive threads load
// consecutive columns.
template <int kTileRows, int kPitch, typename T>
__device__ void LoadTile(const T* first, int64_t stride, int rows, int columns,
                         float (&tile)[kTileRows][kPitch]) {
  for (int i = threadIdx.x; i < kTileRows * kInputs; i += kThreads) {
    const int row = i / kInputs, column = i % kInputs;
    const bool inside = row < rows && column < columns;
    tile[row][column] = inside ? ToFloat(first[row * stride + column]) : 0.0f;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    HeadLinearKernel(const __grid_constant__ HeadProduct<T> job) {
  __shared__ float x_tile[kRows][kInputs];
  // Threads of a warp read one column of 32 rows: those must lie in different banks.
  __shared__ float weight_tile[kOutputs][kInputs + 1];
  const int row = blockIdx.x * kRows, output = blockIdx.y * kOutputs;
  const int64_t head = blockIdx.z;
  const T* x = job.x + head * job.x_head + row * job.x_stride;
  const T* weight = job.weight + head * job.weight_head + output * job.weight_pitch;
  const int own_output = threadIdx.x % kOutputs;
  const int own_row = static_cast<int>(threadIdx.x) / kOutputs * kRowsOfThread;
  float sums[kRowsOfThread] = {};
  for (int input = 0; input < job.inputs; input += kInputs) {
    const int left = job.inputs - input;
    LoadTile(x + input, job.x_stride, job.rows - row, left, x_tile);
    LoadTile(weight + input, job.weight_pitch, job.outputs - output, left, weight_tile);
    __syncthreads();
    for (int i = 0; i < kInputs; ++i) {
      const float w = weight_tile[own_output][i];
#pragma unroll
      for (int r = 0; r < kRowsOfThread; ++r) sums[r] = fmaf(x_tile[own_row + r][i], w, sums[r]);
    }
    __syncthreads();
  }
  if (output + own_output >= job.outputs) return;
  T* out = job.out + head * job.out_head + output + own_output;
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r) {
    const int to = row + own_row + r;
    if (to < job.rows) out[to * job.out_stride] = FromFloat<T>(sums[r]);
  }
}

constexpr int kStoreThreads = 256;

struct LatentStore {
  const void* q = nullptr;        // [rows, num_heads * q_dim]
  const void* latents = nullptr;  // [rows, head_dim]
  void* queries = nullptr;        // [rows, num_heads * head_dim]
  void* pool = nullptr;           // the layer's first key of block 0
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* turns = nullptr;  // null: the positions
  const int32_t* row_seq = nullptr;
  const int32_t* block_table = nullptr;
  int32_t max_blocks = 0;
  int32_t block_tokens = 0;
  int32_t num_heads = 0;
  int32_t q_dim = 0;
  int32_t head_dim = 0;
  int32_t latent_dim = 0;
  int32_t pairs = 0;
  int64_t block_elements = 0;
};

// One block per row; the key turns after the heads' queries.
template <typename T, typename Stored>
__global__ void __launch_bounds__(kStoreThreads)
    LatentRopeStoreKernel(const __grid_constant__ LatentStore job) {
  const int64_t row = blockIdx.x;
  const int seq = job.row_seq[row];
  if (seq < 0) return;  // padding
  const int position = job.positions[row];
  const int block = job.block_table[int64_t{seq} * job.max_blocks + position / job.block_tokens];
  Stored* key = static_cast<Stored*>(job.pool) + block * job.block_elements +
                int64_t{position % job.block_tokens} * job.head_dim;
  const T* latent = static_cast<const T*>(job.latents) + row * job.head_dim;
  const int turned = 2 * job.pairs;
  const int64_t turn = int64_t{job.turns == nullptr ? position : job.turns[row]} * job.pairs;
  for (int i = threadIdx.x; i < (job.num_heads + 1) * job.pairs; i += kStoreThreads) {
    const int head = i / job.pairs, pair = i % job.pairs;
    const bool of_key = head == job.num_heads;
    const T* x = of_key ? latent + job.latent_dim
                        : static_cast<const T*>(job.q) +
                              (row * job.num_heads + head + 1) * job.q_dim - turned;
    const float c = job.cos[turn + pair], s = job.sin[turn + pair];
    const float a = ToFloat(x[pair]), b = ToFloat(x[pair + job.pairs]);
    const float low = fmaf(-b, s, a * c), high = fmaf(a, s, b * c);
    if (of_key) {
      key[job.latent_dim + pair] = FromFloat<Stored>(low);
      key[job.latent_dim + pair + job.pairs] = FromFloat<Stored>(high);
    } else {
      T* to = static_cast<T*>(job.queries) + (row * job.num_heads + head + 1) * job.head_dim -
              turned + pair;
      to[0] = FromFloat<T>(low);
      to[job.pairs] = FromFloat<T>(high);
    }
  }
  for (int i = threadIdx.x; i < job.latent_dim; i += kStoreThreads) {
    key[i] = FromFloat<Stored>(ToFloat(latent[i]));
  }
}

}  // namespace

void CudaOps::HeadLinear(const HeadColumns& x, const LinearWeight& weight, const HeadColumns& out) {
  const int64_t head_rows = PaddedHeadRows(out.width);
  const int64_t num_heads = weight.rows / head_rows;
  TANDEM_CHECK(weight.scheme.is_plain() && weight.bias.bytes() == 0 &&
                   x.rows.dtype == weight.dtype && out.rows.dtype == weight.dtype,
               "the types differ");
  TANDEM_CHECK(x.width == weight.cols && num_heads * head_rows == weight.rows &&
                   out.rows.dim(0) == x.rows.dim(0),
               "shapes do not fit the weight");
  if (x.rows.dim(0) == 0) return;
  WithActivation(x.rows.dtype, [&](auto element) {
    using T = decltype(element);
    HeadProduct<T> job;
    job.x = x.rows.As<T>() + x.first;
    job.x_stride = x.rows.dim(1);
    job.x_head = x.stride;
    job.weight = weight.data.As<T>();
    job.weight_pitch = PackedPitch(weight.cols, weight.dtype);
    job.weight_head = head_rows * job.weight_pitch;
    job.out = out.rows.As<T>() + out.first;
    job.out_stride = out.rows.dim(1);
    job.out_head = out.stride;
    job.rows = static_cast<int32_t>(x.rows.dim(0));
    job.inputs = static_cast<int32_t>(x.width);
    job.outputs = static_cast<int32_t>(out.width);
    const dim3 grid(static_cast<unsigned>(CeilDiv(job.rows, kRows)),
                    static_cast<unsigned>(CeilDiv(job.outputs, kOutputs)),
                    static_cast<unsigned>(num_heads));
    HeadLinearKernel<T><<<grid, kThreads, 0, context_.stream>>>(job);
    CheckLaunch("HeadLinear");
  });
}

void CudaOps::LatentRopeStore(const Tensor& q, const Tensor& latents, const RopeTable& rope,
                              const BatchView& batch, const KvGroup& kv, int32_t layer,
                              const Tensor& queries) {
  const bool fp8 = kv.data.dtype == DType::kF8E4M3;
  const int64_t pairs = rope.cos.empty() ? 0 : rope.cos.dim(1);
  const int64_t num_heads = kv.query_heads(queries.dim(1));
  TANDEM_CHECK(fp8 || kv.data.dtype == q.dtype,
               "latents are stored in the activations' type or in fp8");
  TANDEM_CHECK(kv.key_scales.empty() && kv.value_scales.empty(), "latents have no scales");
  TANDEM_CHECK(kv.num_kv_heads == 1 && kv.latent_dim + 2 * pairs == kv.head_dim,
               "a token has one key: its latent, then what turns");
  TANDEM_CHECK(latents.dim(1) == kv.head_dim && queries.dim(1) == num_heads * kv.head_dim &&
                   q.dim(1) % num_heads == 0 && q.dim(1) >= num_heads * 2 * pairs,
               "the rows are for heads of another size");
  TANDEM_CHECK(!rope.halves && rope.query_factors.empty(), "rows of latents turn once");
  if (batch.num_rows == 0) return;
  LatentStore job;
  job.q = q.data;
  job.latents = latents.data;
  job.queries = queries.data;
  job.pool = static_cast<std::byte*>(kv.data.data) +
             layer * kv.elements_per_head() * static_cast<int64_t>(SizeOf(kv.data.dtype));
  job.cos = rope.cos.As<float>();
  job.sin = rope.sin.As<float>();
  job.positions = batch.positions;
  job.turns = batch.turns;
  job.row_seq = batch.row_seq;
  job.block_table = batch.block_table;
  job.max_blocks = batch.max_blocks;
  job.block_tokens = kv.block_tokens;
  job.num_heads = static_cast<int32_t>(num_heads);
  job.q_dim = static_cast<int32_t>(q.dim(1) / num_heads);
  job.head_dim = kv.head_dim;
  job.latent_dim = kv.latent_dim;
  job.pairs = static_cast<int32_t>(pairs);
  job.block_elements = kv.elements_per_block();
  const auto blocks = static_cast<unsigned>(batch.num_rows);
  WithActivation(q.dtype, [&](auto element) {
    using T = decltype(element);
    if (fp8) {
      LatentRopeStoreKernel<T, Fp8><<<blocks, kStoreThreads, 0, context_.stream>>>(job);
    } else {
      LatentRopeStoreKernel<T, T><<<blocks, kStoreThreads, 0, context_.stream>>>(job);
    }
    CheckLaunch("LatentRopeStore");
  });
}

}  // namespace tandem::ops::cuda
