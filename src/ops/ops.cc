#include "ops/ops.h"

namespace tandem::ops {

void Ops::GatedMlp(const Tensor& x, const LinearWeight& gate_up_weight,
                   const LinearWeight& down_weight, const Tensor& gate_up, const Tensor& activated,
                   const Tensor& out) {
  Linear(x, gate_up_weight, gate_up);
  SwiGlu(gate_up, activated);
  Linear(activated, down_weight, out);
}

}  // namespace tandem::ops
