// What the tests of products share.
#pragma once

#include <cstddef>
#include <vector>

#include "ops/testing/op_test.h"

namespace tandem::ops {

class ProductTest : public OpTest {
 protected:
  // The bytes of a product.
  std::vector<std::byte> Run(const Tensor& x, const LinearWeight& weight, DType out_dtype) {
    const OwnedTensor out = Poisoned({x.dim(0), weight.rows}, out_dtype);
    ops().Linear(x, weight, out.tensor);
    return Bytes(out.tensor);
  }

  // A gated one. A backend may fuse them; the bits must be the same.
  void ExpectMlpIsItsParts(const Tensor& x, const LinearWeight& gate_up, const LinearWeight& down) {
    const int64_t rows = x.dim(0);
    const OwnedTensor both = Poisoned({rows, gate_up.rows}, dtype());
    const OwnedTensor activated = Poisoned({rows, down.cols}, dtype());
    const OwnedTensor fused = Poisoned({rows, down.rows}, dtype());
    ops().Mlp(x, gate_up, Activation::kSilu, down, both.tensor, activated.tensor, fused.tensor);
    ops().Linear(x, gate_up, both.tensor);
    ops().Activate(Activation::kSilu, both.tensor, activated.tensor);
    EXPECT_EQ(Bytes(fused.tensor), Run(activated.tensor, down, dtype())) << rows << " rows";
  }
};

}  // namespace tandem::ops
