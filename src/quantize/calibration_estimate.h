// What a calibration run will take: its memory follows from the model's description, its time from
// samples of the work that are measured on this machine. One thread.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/backend.h"
#include "quantize/recipe.h"
#include "quantize/sample_batch.h"

namespace tandem {

struct CalibrationEstimate {
  int64_t rows = 0;          // tokens of all samples
  int64_t memory_bytes = 0;  // beyond the mapped files of the model
  int64_t spill_bytes = 0;   // of the work folder
  double seconds = 0.0;
  int64_t layers_done = 0;  // by a run that was killed
};

// `layers_done`: the first layers of the model that need no more time. Measuring takes a part of a
// second.
Result<CalibrationEstimate> EstimateCalibration(const ModelSpec& spec, const CalibrationRows& rows,
                                                const QuantizeRecipe& recipe, int64_t layers_done,
                                                ops::Backend& backend, ThreadPool& pool);

}  // namespace tandem
