// The scales by which SmoothQuant (arXiv 2211.10438) and AWQ (arXiv 2306.00978) move the range of
// a product's inputs into its weights: the product of input / scale and weight * scale is the same,
// but rounds better. Pure functions of their arguments: the same bits on every run.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/quantize/input_statistics.h"
#include "ops/backend.h"

namespace tandem {

// The weights of the products that share an input, one below the other.
struct GroupWeights {
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = DType::kBF16;  // in which a product of them is computed
  std::vector<float> values;   // [rows, columns]

  std::span<const float> Row(int64_t row) const {
    return std::span(values).subspan(static_cast<size_t>(row * columns),
                                     static_cast<size_t>(columns));
  }
};

// Inputs with the same number here have one scale. [columns]
using SharedScales = std::span<const int64_t>;

// largest|x|^alpha / largest|w|^(1 - alpha). [columns]
std::vector<float> SmoothQuantScales(const InputStatistics& inputs, const GroupWeights& weights,
                                     SharedScales shared, double alpha);

// mean|x|^alpha for the alpha in 0 .. 1 whose rounded weights change the products of the kept rows
// least. [columns]
Result<std::vector<float>> AwqScales(const InputStatistics& inputs, const GroupWeights& weights,
                                     SharedScales shared, const QuantScheme& scheme,
                                     ops::Backend& backend, ThreadPool& pool);

// The shares of each block's largest magnitude (ops::ClipShares) that change the products of the
// kept rows least. `weights` and the inputs: after the scales. [rows, blocks]; empty where a block
// is a whole row.
std::vector<float> AwqClipShares(const InputStatistics& inputs, std::span<const float> scales,
                                 const GroupWeights& weights, const QuantScheme& scheme,
                                 ThreadPool& pool);

}  // namespace tandem
