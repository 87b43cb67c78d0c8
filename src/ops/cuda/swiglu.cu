#include <algorithm>

#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/linear/swiglu.cuh"
#include "ops/cuda/row_ops.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const T* gate_up, int64_t row_pieces, int64_t pieces, T* out) {
  BeginKernel();
  const int64_t width = row_pieces * kCount;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < pieces;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / row_pieces, first = i % row_pieces * kCount;
    const T* gate = gate_up + row * 2 * width + first;
    StorePack(out + i * kCount,
              SwiGluOf(LoadPack<T, kCount>(gate), LoadPack<T, kCount>(gate + width)));
  }
}

}  // namespace

void CudaOps::Activate(Activation activation, const Tensor& gate_up, const Tensor& out) {
  const int64_t width = out.dim(1);
  if (activation != Activation::kSilu || gate_up.dim(1) == width) {
    return ActivateRows(context_, activation, 0.0f, gate_up, out);
  }
  TANDEM_CHECK(gate_up.dtype == out.dtype && gate_up.dim(1) == 2 * width,
               "gate_up is not twice out");
  if (out.NumElements() == 0) return;
  WithActivation(out.dtype, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&]<int kCount>() {
      const int64_t pieces = out.NumElements() / kCount;
      const int64_t blocks =
          std::min(CeilDiv(pieces, kThreads), int64_t{16} * std::max(context_.num_sms, 1));
      LaunchEarly(context_, "SwiGlu", SwiGluKernel<T, kCount>, dim3(static_cast<unsigned>(blocks)),
                  kThreads, 0, static_cast<const T*>(gate_up.data), width / kCount, pieces,
                  static_cast<T*>(out.data));
    };
    if (width % 8 == 0) {
      launch.template operator()<8>();
    } else {
      launch.template operator()<1>();
    }
  });
}

}  // namespace tandem::ops::cuda
