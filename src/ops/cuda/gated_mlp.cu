// For few rows SwiGlu is part of the first product. For more, the norm and SwiGlu round the inputs
// of the products to fp8 where these take fp8.
#include "ops/cuda/cuda_ops.cuh"

namespace tandem::ops::cuda {
namespace {

bool IsSwiGlu(Activation activation, const LinearWeight& in_weight, const Tensor& activated) {
  return activation == Activation::kSilu && in_weight.rows == 2 * activated.dim(1);
}

}  // namespace

void CudaOps::SwiGluLinear(const Tensor& gate_up, const LinearWeight& weight,
                           const Tensor& activated, const Tensor& out) {
  if (linear_.RunSwiGluLinear(gate_up, weight, out)) return;
  Activate(Activation::kSilu, gate_up, activated);
  Linear(activated, weight, out);
}

void CudaOps::Mlp(const Tensor& x, const LinearWeight& gate_up_weight, Activation activation,
                  const LinearWeight& down_weight, const Tensor& gate_up, const Tensor& activated,
                  const Tensor& out) {
  if (!IsSwiGlu(activation, gate_up_weight, activated)) {
    Ops::Mlp(x, gate_up_weight, activation, down_weight, gate_up, activated, out);
  } else if (const auto few = linear_.RunGated(x, gate_up_weight, down_weight, activated)) {
    linear_.RunFew(*few, down_weight, out);
  } else {
    Linear(x, gate_up_weight, gate_up);
    SwiGluLinear(gate_up, down_weight, activated, out);
  }
}

void CudaOps::NormMlp(const NormedRows& x, const LinearWeight& gate_up_weight,
                      Activation activation, const LinearWeight& down_weight, const Tensor& gate_up,
                      const Tensor& activated, const Tensor& out) {
  const bool gated = IsSwiGlu(activation, gate_up_weight, activated);
  if (gated && x.HasSum()) {
    const auto few = linear_.RunGated(FewRows(x), gate_up_weight, down_weight, activated);
    if (few) return linear_.RunFew(*few, down_weight, out);
  }
  NormedRows left = x;
  if (gated && linear_.RunIntegerMlp(left, gate_up_weight, down_weight, gate_up, out)) return;
  if (gated && linear_.RunNormLinear(left, gate_up_weight, gate_up)) {
    SwiGluLinear(gate_up, down_weight, activated, out);
  } else {
    Ops::NormMlp(left, gate_up_weight, activation, down_weight, gate_up, activated, out);
  }
}

void CudaOps::NormMlpAdd(const NormedRows& x, const LinearWeight& gate_up_weight,
                         Activation activation, const LinearWeight& down_weight,
                         const Tensor& gate_up, const Tensor& activated, NormedRows& sum) {
  if (!IsSwiGlu(activation, gate_up_weight, activated) ||
      !LinearRunner::TakesGated(x.rows, gate_up_weight) ||
      !linear_.TakesAdded(activated, down_weight, sum)) {
    return Ops::NormMlpAdd(x, gate_up_weight, activation, down_weight, gate_up, activated, sum);
  }
  const bool takes_sum = x.HasSum() && LinearRunner::TakesGated(FewRows(x), gate_up_weight);
  if (!takes_sum) AddNorm(x);
  const auto few = linear_.RunGated(takes_sum ? FewRows(x) : FewRows(x.rows), gate_up_weight,
                                    down_weight, activated);
  const bool runs = few && linear_.RunAdded(*few, down_weight, sum);
  TANDEM_CHECK(runs, "both products take this");
}

}  // namespace tandem::ops::cuda
