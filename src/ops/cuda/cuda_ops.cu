#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

CudaOps::CudaOps(const Context& context)
    : context_(context), linear_(context), attention_(context), sampler_(context) {}

void CudaOps::WarmUp(const std::function<void()>& work) { linear_.WarmUp(work); }

void CudaOps::Linear(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  linear_.Run(x, weight, out);
}

void CudaOps::NormLinear(const NormedRows& x, const LinearWeight& weight, const Tensor& out) {
  if (x.HasSum() && LinearRunner::TakesFewRows(FewRows(x), weight)) {
    return linear_.RunFew(FewRows(x), weight, out);
  }
  NormedRows left = x;
  if (!linear_.RunNormLinear(left, weight, out)) Ops::NormLinear(left, weight, out);
}

void CudaOps::LinearAdd(const Tensor& x, const LinearWeight& weight, NormedRows& sum) {
  if (!linear_.RunAdded(x, weight, sum)) Ops::LinearAdd(x, weight, sum);
}

void CudaOps::PagedAttention(const Tensor& qkv, const BatchView& batch, const KvGroup& kv,
                             int32_t layer, const AttentionRule& rule, const Tensor& out) {
  attention_.Run(qkv, batch, kv, layer, rule, out);
}

void CudaOps::Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out) {
  sampler_.Sample(rows, vocab, out);
}

void CudaOps::VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) {
  sampler_.VerifyAndAccept(rows, vocab);
}

}  // namespace tandem::ops::cuda
