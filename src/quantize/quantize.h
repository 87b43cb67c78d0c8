// `tandem quantize`: a Hugging Face folder becomes a quantized checkpoint in TensorRT-LLM's layout,
// or a quantized folder. Runs on the caller's thread.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/write_model.h"
#include "model/config_options.h"
#include "model/sharding.h"
#include "quantize/calibration_run.h"
#include "quantize/recipe.h"

namespace tandem {

struct QuantizeOptions {
  std::filesystem::path model_dir;
  std::filesystem::path output_dir;
  ConfigOptions config = {};
  std::filesystem::path tokenizer_dir = {};  // of the files that go along; empty: model_dir
  // auto, float16, bfloat16, float32: of what is not quantized. auto keeps the model's type, but
  // float32 becomes float16.
  std::string dtype = "auto";
  QuantizeRecipe recipe = {};
  Sharding sharding = {};  // of a checkpoint
  FolderKind folder = FolderKind::kCheckpoint;
  int64_t batch_samples = 0;  // of calibration, that are run together; 0: as many as fit
  int num_threads = 0;        // for rounding; 0: one per core
};

// What the caller does while it runs. `estimate`: before calibration begins, if there is any. An
// error of the others ends the work with it.
struct QuantizeEvents {
  std::function<void(const CalibrationEstimate&)> estimate = {};
  CalibrationRun::Progress calibrating = {};
  WriteProgress writing = {};
};

// `samples`: for recipes that calibrate. The folder appears when it is complete; until then
// calibration's files are next to it under NAME.calibration, which a run that was interrupted
// leaves and the next one takes over: the message of the error says so.
Result<WriteReport> Quantize(const QuantizeOptions& options,
                             std::span<const std::vector<int32_t>> samples, ops::Backend& backend,
                             const QuantizeEvents& events = {});

// The same of any plain weights. `identity` must change whenever they do. The folder's other files
// come from options.model_dir, as WriteModel takes them.
Result<WriteReport> Quantize(WeightSource& plain, const std::string& identity,
                             const QuantizeOptions& options,
                             std::span<const std::vector<int32_t>> samples, ops::Backend& backend,
                             const QuantizeEvents& events = {});

}  // namespace tandem
