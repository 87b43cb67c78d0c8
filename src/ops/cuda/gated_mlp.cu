#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {

// For few rows SwiGlu is part of the first product; for more it rounds the second one's input to
// fp8 where that product takes fp8.
void CudaOps::GatedMlp(const Tensor& x, const LinearWeight& gate_up_weight,
                       const LinearWeight& down_weight, const Tensor& gate_up,
                       const Tensor& activated, const Tensor& out) {
  if (linear_.RunGated(x, gate_up_weight, activated)) {
    Linear(activated, down_weight, out);
    return;
  }
  Linear(x, gate_up_weight, gate_up);
  if (linear_.RunSwiGlu(gate_up, down_weight, out)) return;
  SwiGlu(gate_up, activated);
  Linear(activated, down_weight, out);
}

}  // namespace tandem::ops::cuda
