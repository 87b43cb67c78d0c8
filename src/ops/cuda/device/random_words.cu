#include "ops/cuda/device/random_words.cuh"

namespace tandem::ops::cuda {
namespace {

__global__ void FillKernel(uint64_t* out, int64_t bytes, RandomWords words) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t whole = bytes / 8;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < whole; i += stride) {
    out[i] = words.At(static_cast<uint64_t>(i));
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const uint64_t last = words.At(static_cast<uint64_t>(whole));
  auto* tail = reinterpret_cast<unsigned char*>(out + whole);
  for (int64_t i = 0; i < bytes % 8; ++i) tail[i] = static_cast<unsigned char>(last >> (8 * i));
}

}  // namespace

void FillRandomWords(const Context& context, void* out, int64_t bytes, const RandomWords& words) {
  constexpr int kThreads = 256;
  FillKernel<<<context.num_sms * 8, kThreads, 0, context.stream>>>(static_cast<uint64_t*>(out),
                                                                   bytes, words);
  CheckLaunch("FillKernel");
}

bool HasKernelsForDevice() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, FillKernel) == cudaSuccess;
  cudaGetLastError();  // clear the error
  return found;
}

}  // namespace tandem::ops::cuda
