// LayerPass: runs calibration samples through a model a layer at a time, by the decoder itself, and
// gathers what the layer's products see. Holds the weights of one layer, workspace for one batch
// and nothing of the samples. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quantize/input_statistics.h"
#include "quantize/sample_batch.h"

namespace tandem {

class LayerPass {
 public:
  // `backend` outlives the pass.
  LayerPass(ops::Backend& backend, CalibrationRows rows)
      : backend_(backend), rows_(std::move(rows)) {}

  // Hidden states of rows: [count, hidden] of the spec's type.
  using ReadRows = std::function<Status(int64_t first, int64_t count, void* out)>;
  using WriteRows = std::function<Status(int64_t first, int64_t count, const void* rows)>;
  // Called after each batch with the share done in [0, 1].
  using Progress = std::function<void(double)>;

  // What the first layer takes. `samples`: as long as the pass' rows say, of the vocabulary.
  Status Embed(WeightSource& source, std::span<const std::vector<int32_t>> samples,
               const WriteRows& write);
  // The layer's effect on all samples. `source`: of plain weights, or widened where they are not.
  Result<LayerStatistics> Run(WeightSource& source, int64_t layer, const ReadRows& read,
                              const WriteRows& write, const Progress& progress);

  // Memory of the workspace and of a layer's weights, of the largest layer and without the samples.
  static int64_t WorkBytes(const ModelSpec& spec, const CalibrationRows& rows);

 private:
  ops::Backend& backend_;
  const CalibrationRows rows_;
};

}  // namespace tandem
