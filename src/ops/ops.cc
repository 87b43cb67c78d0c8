#include "ops/ops.h"

namespace tandem::ops {

void Ops::NormLinear(const NormedRows& x, const LinearWeight& weight, const Tensor& out) {
  AddRmsNorm(x.residual, x.delta, x.weight, x.epsilon, x.rows);
  Linear(x.rows, weight, out);
}

void Ops::GatedMlp(const Tensor& x, const LinearWeight& gate_up_weight,
                   const LinearWeight& down_weight, const Tensor& gate_up, const Tensor& activated,
                   const Tensor& out) {
  Linear(x, gate_up_weight, gate_up);
  SwiGlu(gate_up, activated);
  Linear(activated, down_weight, out);
}

void Ops::NormGatedMlp(const NormedRows& x, const LinearWeight& gate_up_weight,
                       const LinearWeight& down_weight, const Tensor& gate_up,
                       const Tensor& activated, const Tensor& out) {
  AddRmsNorm(x.residual, x.delta, x.weight, x.epsilon, x.rows);
  GatedMlp(x.rows, gate_up_weight, down_weight, gate_up, activated, out);
}

}  // namespace tandem::ops
