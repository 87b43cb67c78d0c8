// CalibrationRun: runs samples through a model, layer by layer, and keeps what each layer gave in a
// work folder. A run that was killed goes on with the layer it was at and gives the same bytes.
// Holds one layer; hidden states of all samples lie in files. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quantize/calibration_estimate.h"
#include "quantize/calibration_folder.h"
#include "quantize/layer_calibration.h"
#include "quantize/layer_pass.h"

namespace tandem {

class CalibrationRun {
 public:
  // `samples`: tokens; none is empty; at most `batch_samples` are run together (0: as many as fit).
  // `identity`: differs where the model's weights do. The folder is made, or taken over from a run
  // of the same model, recipe and samples; the files of another run are deleted
  // (CalibrationFolder::Take). `source`, `backend` and `pool` outlive the run.
  static Result<std::unique_ptr<CalibrationRun>> Open(
      const std::filesystem::path& folder, WeightSource& source, const std::string& identity,
      const QuantizeRecipe& recipe, std::span<const std::vector<int32_t>> samples,
      int64_t batch_samples, ops::Backend& backend, ThreadPool& pool);

  // Measures samples of the work for the time, which takes a part of a second.
  Result<CalibrationEstimate> Estimate() const;
  // Called with the share done in [0, 1]. An error ends the run with it.
  using Progress = std::function<Status(double)>;
  // The files that it goes on with are compared with their checksums: DATA_LOSS as Get.
  Status Run(const Progress& progress);
  // Of a layer that Run has calibrated. DATA_LOSS names a file that is damaged, and what to do.
  Result<LayerCalibration> Get(int64_t layer) const;
  // Which part is done and where it is kept, for people.
  std::string DescribeKept() const;
  // Deletes the run's files.
  void Remove();

 private:
  CalibrationRun(std::filesystem::path folder, WeightSource& source, const QuantizeRecipe& recipe,
                 std::span<const std::vector<int32_t>> samples, CalibrationRows rows,
                 ops::Backend& backend, ThreadPool& pool);
  Status Damaged(const Status& why) const;
  int64_t LayersDone() const { return folder_.LayersDone(source_.spec().num_layers()); }
  Status EmbedSamples(LayerPass& pass);
  Status RunLayer(LayerPass& pass, int64_t layer, const Progress& progress);

  const CalibrationFolder folder_;
  WeightSource& source_;
  const QuantizeRecipe recipe_;
  const std::vector<std::vector<int32_t>> samples_;
  ops::Backend& backend_;
  ThreadPool& pool_;
  const CalibrationRows rows_;
};

}  // namespace tandem
