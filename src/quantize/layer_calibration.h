// LayerCalibration: what the weights of one layer need to be quantized, made from the layer's
// statistics and kept in a small file, so that a run that was killed goes on from there.
#pragma once

#include <filesystem>
#include <map>
#include <vector>

#include "base/thread_pool.h"
#include "model/weight_source.h"
#include "ops/backend.h"
#include "quantize/input_statistics.h"
#include "quantize/recipe.h"

namespace tandem {

struct LayerCalibration {
  // Each input is divided by its scale, and its column of the weights multiplied by it. [columns];
  // empty: all are 1.
  std::map<InputId, std::vector<float>> scales;
  std::map<InputId, float> largest_input;  // after the scales
  // Shares of the largest magnitudes of the weights' blocks. [rows, blocks]; none: 1.
  std::map<WeightId, std::vector<float>> clip;
  std::vector<float> largest_key;    // [key-value heads]
  std::vector<float> largest_value;  // [key-value heads]

  bool operator==(const LayerCalibration&) const = default;
};

// `source`: of plain weights.
Result<LayerCalibration> Calibrate(WeightSource& source, int64_t layer,
                                   const LayerStatistics& statistics, const QuantizeRecipe& recipe,
                                   ops::Backend& backend, ThreadPool& pool);

// Atomically; the file is read back whole or refused.
Status WriteCalibration(const std::filesystem::path& path, const LayerCalibration& calibration);
Result<LayerCalibration> ReadCalibration(const std::filesystem::path& path, const ModelSpec& spec,
                                         int64_t layer, const QuantizeRecipe& recipe);

}  // namespace tandem
