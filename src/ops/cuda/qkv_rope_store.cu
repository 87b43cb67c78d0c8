#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

void CudaOps::QkvRopeStore(const Tensor&, const RopeTable&, const BatchView&, const KvPool&, int32_t) { TANDEM_CHECK(false, "not yet"); }

}  // namespace tandem::ops::cuda
