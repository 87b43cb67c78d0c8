// For few rows SwiGlu is part of the first product. For more, the norm and SwiGlu round the inputs
// of the products to fp8 where these take fp8.
#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

void CudaOps::SwiGluLinear(const Tensor& gate_up, const LinearWeight& weight,
                           const Tensor& activated, const Tensor& out) {
  if (linear_.RunSwiGluLinear(gate_up, weight, out)) return;
  SwiGlu(gate_up, activated);
  Linear(activated, weight, out);
}

void CudaOps::GatedMlp(const Tensor& x, const LinearWeight& gate_up_weight,
                       const LinearWeight& down_weight, const Tensor& gate_up,
                       const Tensor& activated, const Tensor& out) {
  if (linear_.RunGated(x, gate_up_weight, activated)) {
    Linear(activated, down_weight, out);
  } else {
    Linear(x, gate_up_weight, gate_up);
    SwiGluLinear(gate_up, down_weight, activated, out);
  }
}

void CudaOps::NormGatedMlp(const NormedRows& x, const LinearWeight& gate_up_weight,
                           const LinearWeight& down_weight, const Tensor& gate_up,
                           const Tensor& activated, const Tensor& out) {
  NormedRows left = x;
  if (linear_.RunNormLinear(left, gate_up_weight, gate_up)) {
    SwiGluLinear(gate_up, down_weight, activated, out);
  } else {
    Ops::NormGatedMlp(left, gate_up_weight, down_weight, gate_up, activated, out);
  }
}

}  // namespace tandem::ops::cuda
