// QuantizedModel: the folder of a Hugging Face model that is quantized by calibration, made when it
// is first asked for and kept in a cache. Several processes may ask at once: one makes it, the
// others wait. Blocks for as long as that takes; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "apps/cli/command.h"
#include "apps/models/calibrated_quantization.h"
#include "apps/models/devices.h"
#include "model/config_options.h"
#include "quantize/recipe.h"

namespace tandem::apps {

struct QuantizedModelOptions {
  std::filesystem::path cache_dir = {};      // empty: CacheFolder()
  std::filesystem::path tokenizer_dir = {};  // empty: the model's folder
  ConfigOptions config = {};                 // of the model's config.json
  std::string dtype = "auto";                // as QuantizeOptions::dtype
  std::string calib_dataset = {};            // as CalibrationOptions::dataset
  // FAILED_PRECONDITION where the model would have to be made.
  bool only_kept = false;
  BackendOptions backend = {};       // on which calibration runs
  const Console* console = nullptr;  // where progress is told; null: nowhere
  // Looked at while it waits and works; an error ends that, and the next call goes on where this
  // one was. Null: never.
  std::function<Status()> check = {};
  // Of the disk that a folder is on; null: what the system says.
  std::function<int64_t(const std::filesystem::path& folder)> free_bytes = {};
};

// How the model is quantized. UNIMPLEMENTED or INVALID_ARGUMENT names the option that asks for what
// is not made.
Result<QuantizeRecipe> RecipeOf(const CalibratedQuantization& what);

// "smoothquant", "awq", "fp8"
std::string_view SchemeName(CalibratedQuantization::Scheme scheme);

// Where QuantizedModel keeps the result of a plain Hugging Face folder, whether it is there or not.
Result<std::filesystem::path> QuantizedFolder(const std::filesystem::path& model_folder,
                                              const CalibratedQuantization& what,
                                              const QuantizedModelOptions& where);

// The folder to open instead of `model_folder`: a checkpoint with the tokenizer's files, under a
// name that differs where the model's content, `what`, the texts or the version of the program do.
// It appears when it is complete; one that was damaged since, other than in the bytes of its
// weights, is made again. `model_folder` itself, and a line of the log, if it is a checkpoint or an
// engine, or quantized in such elements already; INVALID_ARGUMENT if it is quantized otherwise.
// RESOURCE_EXHAUSTED before anything is computed if the cache's disk has no room.
Result<std::filesystem::path> QuantizedModel(const std::filesystem::path& model_folder,
                                             const CalibratedQuantization& what,
                                             const QuantizedModelOptions& where);

}  // namespace tandem::apps
