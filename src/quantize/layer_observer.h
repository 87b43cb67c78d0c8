// LayerObserver: gathers the statistics of one layer's inputs, keys and values while the layer runs
// in an ObservedBackend. Holds at most kKeptRows rows of each input. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "model/decoder/weights.h"
#include "quantize/input_statistics.h"
#include "quantize/observed_backend.h"

namespace tandem {

class LayerObserver final : public ProductObserver {
 public:
  // `weights`: of the layer, whose products are seen. `num_rows`: of all samples. `weights` and
  // `backend` outlive the observer.
  LayerObserver(const ModelSpec& spec, int64_t layer, const LayerWeights& weights, int64_t num_rows,
                ops::Backend& backend);

  // The row of all samples that the batch begins with.
  void BeginBatch(int64_t first_row) { batch_row_ = first_row; }
  void SeeProduct(const Tensor& x, const ops::LinearWeight& weight) override;
  void SeeExperts(int64_t first_row, const Tensor& x, const ops::ExpertChoice& choice,
                  const Tensor& inner) override;
  // Positions that no sample has written hold zeros or an earlier batch's keys of this layer.
  void SeeCache(const ops::KvGroup& kv);

  // Everything gathered; the observer is of no further use.
  LayerStatistics Take() { return std::move(statistics_); }

 private:
  void See(const InputId& id, const Tensor& x, int64_t first_row);
  void Add(const Tensor& row, bool keep, InputStatistics& seen);
  Tensor OnHost(const Tensor& x);
  const std::vector<float>& AsFloats(const Tensor& row);

  ops::Backend& backend_;
  const int64_t spacing_;  // in rows, of those that are kept
  int64_t expert_spacing_ = 1;
  int64_t batch_row_ = 0;
  std::map<const ops::LinearWeight*, InputId> products_;
  InputId before_experts_;
  LayerStatistics statistics_;
  std::vector<std::byte> host_;
  std::vector<float> floats_;
};

// Memory of the statistics of the largest layer.
int64_t StatisticsBytes(const ModelSpec& spec, int64_t num_rows);

}  // namespace tandem
