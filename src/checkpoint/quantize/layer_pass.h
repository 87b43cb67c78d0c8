// LayerPass: runs calibration samples through one layer of a model at a time, in the arithmetic of
// the decoder, and gathers what its products see. Holds the weights of one layer, workspace for
// one batch and nothing of the samples. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/quantize/input_statistics.h"
#include "model/decoder/weights.h"
#include "model/kv_pool.h"

namespace tandem {

// The samples: lengths in tokens, of rows that follow each other.
struct CalibrationRows {
  std::vector<int32_t> lengths;
  int64_t total = 0;
  int32_t longest = 0;
};

class LayerPass {
 public:
  // `kept_rows`: of each input, at most this many are kept.
  static Result<std::unique_ptr<LayerPass>> Create(const ModelSpec& spec, ops::Backend& backend,
                                                   CalibrationRows rows, int64_t kept_rows);
  ~LayerPass();

  // Hidden states of rows: [count, hidden] of the spec's type.
  using ReadRows = std::function<Status(int64_t first, int64_t count, void* out)>;
  using WriteRows = std::function<Status(int64_t first, int64_t count, const void* rows)>;
  // Called after each batch with the share done in [0, 1].
  using Progress = std::function<void(double)>;

  // The layer's effect on all samples. `source`: of plain weights, or widened where they are not.
  Result<LayerStatistics> Run(WeightSource& source, int64_t layer, const ReadRows& read,
                              const WriteRows& write, const Progress& progress);

  // Memory of the workspace, of a layer's weights and of the statistics, without the samples.
  static int64_t WorkBytes(const ModelSpec& spec, const CalibrationRows& rows, int64_t kept_rows);

 private:
  struct State;
  explicit LayerPass(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Samples that are run together: the first, their number, their rows and the first row. As many as
// fit in a batch, at least one.
struct SampleBatch {
  size_t first = 0;
  size_t count = 0;
  int64_t first_row = 0;
  int32_t rows = 0;
};
std::vector<SampleBatch> BatchesOf(const CalibrationRows& rows);

}  // namespace tandem
