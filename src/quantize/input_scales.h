// The scales by which SmoothQuant (arXiv 2211.10438) and AWQ (arXiv 2306.00978) move the range of
// a product's inputs into its weights: the product of input / scale and weight * scale is the same,
// but rounds better. Pure functions of their arguments: the same bits on every run.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/backend.h"
#include "quantize/input_statistics.h"

namespace tandem {

// The weights of a product, one below the other.
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

// Each the nearest power of two.
void RoundToPowersOfTwo(std::span<float> scales);

// largest = the largest magnitudes of the weights' columns and of itself; empty at first. [columns]
void RaiseToLargest(const GroupWeights& weights, std::vector<float>& largest);
// largest|x|^alpha / largest|w|^(1 - alpha). [columns]
std::vector<float> SmoothQuantScales(const InputStatistics& inputs,
                                     std::vector<float> largest_weight, SharedScales shared,
                                     double alpha);

// AWQ's search: mean|x|^alpha for the alpha in 0 .. 1 whose rounded weights change the products of
// the kept rows least. The products that share the inputs are added one after another, so that one
// of them is in memory at a time. All arguments except `weights` must outlive the search.
class AwqSearch {
 public:
  AwqSearch(const InputStatistics& inputs, SharedScales shared, bool powers_of_two,
            const QuantScheme& scheme, ops::Backend& backend, ThreadPool& pool);
  ~AwqSearch();
  Status Add(const GroupWeights& weights);
  // [columns]; of all that were added.
  Result<std::vector<float>> Best() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The shares of each block's largest magnitude (ops::ClipShares) that change the products of the
// kept rows least. `weights` and the inputs: after the scales. [rows, blocks]; empty where a block
// is a whole row.
std::vector<float> AwqClipShares(const InputStatistics& inputs, std::span<const float> scales,
                                 const GroupWeights& weights, const QuantScheme& scheme,
                                 ThreadPool& pool);

}  // namespace tandem
