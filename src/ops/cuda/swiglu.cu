#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

void CudaOps::SwiGlu(const Tensor&, const Tensor&) { TANDEM_CHECK(false, "not yet"); }

}  // namespace tandem::ops::cuda
