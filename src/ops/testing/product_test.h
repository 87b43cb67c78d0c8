// What the tests of products share.
#pragma once

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "ops/testing/op_test.h"

namespace tandem::ops {

struct LinearShape {
  int64_t rows, cols, outputs;
};

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

  // x [rows, cols] times weight [outputs, cols] transposed, plus the bias unless it is empty.
  std::vector<double> Reference(const Tensor& x, const Tensor& weight,
                                const std::vector<double>& bias) {
    return Reference(x, Doubles(weight), bias);
  }
  std::vector<double> Reference(const Tensor& x, const std::vector<double>& w,
                                const std::vector<double>& bias) {
    const std::vector<double> a = Doubles(x);
    const int64_t rows = x.dim(0), cols = x.dim(1);
    const int64_t outputs = static_cast<int64_t>(w.size()) / cols;
    std::vector<double> out(static_cast<size_t>(rows * outputs));
    for (int64_t output = 0; output < outputs; ++output) {
      const auto weight = w.begin() + output * cols;
      const double start = bias.empty() ? 0.0 : bias[static_cast<size_t>(output)];
      for (int64_t row = 0; row < rows; ++row) {
        // Sums in no order, several at a time.
        out[static_cast<size_t>(row * outputs + output)] =
            std::transform_reduce(weight, weight + cols, a.begin() + row * cols, start);
      }
    }
    return out;
  }

  // A row's bits do not depend on the rows beside it; x has 515.
  void ExpectRowsStandAlone(const Tensor& x, const LinearWeight& weight) {
    for (const DType out_dtype : {DType::kF32, dtype()}) {
      const std::vector<std::byte> all = Run(x, weight, out_dtype);
      const size_t row_bytes = static_cast<size_t>(weight.rows) * SizeOf(out_dtype);
      for (const int64_t rows :
           {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 32, 33, 64, 200, 512}) {
        const std::vector<std::byte> some = Run(x.Rows(rows), weight, out_dtype);
        ASSERT_EQ(std::memcmp(some.data(), all.data(), static_cast<size_t>(rows) * row_bytes), 0)
            << rows << " rows";
      }
      // A single row, taken from anywhere.
      for (const int64_t row : {5, 63, 511, 514}) {
        const std::vector<std::byte> alone = Run(x.RowRange(row, 1), weight, out_dtype);
        ASSERT_EQ(
            std::memcmp(alone.data(), all.data() + static_cast<size_t>(row) * row_bytes, row_bytes),
            0)
            << "row " << row;
      }
    }
  }

  // ExpectMlpIsItsParts with random weights, inner rows of `width` and these numbers of rows.
  void ExpectGatedMlpIsItsParts(int64_t width, int64_t cols, const WeightFormat& kept,
                                std::initializer_list<int64_t> row_counts) {
    const OwnedTensor gate = Random({width, cols}, dtype(), 15, 0.2f);
    const OwnedTensor up = Random({width, cols}, dtype(), 16, 0.2f);
    const OwnedTensor up_bias = Random({width}, dtype(), 17);
    const OwnedTensor down = Random({cols, width}, dtype(), 18);
    const LinearWeight both =
        backend().PackLinear({{{gate.tensor}, {up.tensor, up_bias.tensor}}}, kept).value();
    const LinearWeight last = backend().PackLinear({{{down.tensor}}}, kept).value();
    for (const int64_t rows : row_counts) {
      const OwnedTensor x = Random({rows, cols}, dtype(), 14);
      ExpectMlpIsItsParts(x.tensor, both, last);
    }
  }
};

}  // namespace tandem::ops
