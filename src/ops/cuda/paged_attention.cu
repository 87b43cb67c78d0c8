#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

void AttentionRunner::Run(const Tensor&, const BatchView&, const KvPool&, int32_t, float, const Tensor&) { TANDEM_CHECK(false, "not yet"); }

}  // namespace tandem::ops::cuda
