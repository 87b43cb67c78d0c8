#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

void CudaSampler::Sample(std::span<const SampleRow>, int64_t, std::span<SampledToken>) { TANDEM_CHECK(false, "not yet"); }
int32_t CudaOps::VerifyAndAccept(const SlotSampling&, int32_t, const int32_t*, int32_t, const float*, float*, int64_t, int32_t*) { TANDEM_CHECK(false, "not yet"); return 0; }

}  // namespace tandem::ops::cuda
