#include "ops/cuda/sample.cuh"

namespace tandem::ops::cuda {

void CudaSampler::Reserve(int64_t, int64_t) {}
void CudaSampler::Sample(std::span<const SampleRow>, int64_t, std::span<SampledToken>) {
  TANDEM_CHECK(false, "not yet");
}
void CudaSampler::VerifyAndAccept(std::span<const VerifyRow>, int64_t) {
  TANDEM_CHECK(false, "not yet");
}

}  // namespace tandem::ops::cuda
