#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

// For few rows SwiGlu is part of the first product; more rows run the ops separately.
void CudaOps::GatedMlp(const Tensor& x, const LinearWeight& gate_up_weight,
                       const LinearWeight& down_weight, const Tensor& gate_up,
                       const Tensor& activated, const Tensor& out) {
  if (linear_.RunGated(x, gate_up_weight, activated)) {
    Linear(activated, down_weight, out);
  } else {
    Ops::GatedMlp(x, gate_up_weight, down_weight, gate_up, activated, out);
  }
}

}  // namespace tandem::ops::cuda
