#include <algorithm>

#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 128;

// One block per plane: the keys or values of one layer and head.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    CopyBlockKernel(const Word* from, Word* to, int64_t plane_words, int64_t words) {
  from += blockIdx.x * plane_words;
  to += blockIdx.x * plane_words;
  for (int64_t i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
}

}  // namespace

void CudaOps::CopyBlock(const KvPool& pool, int32_t from, int32_t to, int32_t tokens) {
  if (tokens == 0 || from == to) return;
  for (const KvGroup& kv : pool.groups) {
    const auto size = static_cast<int64_t>(SizeOf(kv.data.dtype));
    const int64_t block_bytes = kv.elements_per_block() * size;
    const int64_t plane_bytes = kv.elements_per_head() * size;
    const int64_t bytes = int64_t{tokens} * kv.head_dim * size;
    const int64_t planes = int64_t{kv.num_layers} * kv.planes() * kv.num_kv_heads;
    auto* data = static_cast<std::byte*>(kv.data.data);
    const auto launch = [&]<typename Word>(Word) {
      constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
      CopyBlockKernel<Word><<<static_cast<unsigned>(planes), kThreads, 0, context_.stream>>>(
          reinterpret_cast<const Word*>(data + from * block_bytes),
          reinterpret_cast<Word*>(data + to * block_bytes), plane_bytes / kBytes, bytes / kBytes);
    };
    if (plane_bytes % 16 == 0 && bytes % 16 == 0) {
      launch(uint4{});
    } else {
      launch(uint8_t{});
    }
    CheckLaunch("CopyBlock");
  }
}

}  // namespace tandem::ops::cuda
