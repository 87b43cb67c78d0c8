#include "quantize/calibration_run.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "model/decoder/weights.h"
#include "model/prompt_rules.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFingerprintFile = "run.json";
// To be raised with every change of what a layer's file holds or how it is computed, so that no
// program goes on with what another began differently.
constexpr int kCalibration = 2;
// Of the files with the hidden states before a layer, and with what was calibrated of a layer; its
// number follows.
constexpr const char* kHiddenPrefix = "hidden-";
constexpr const char* kLayerPrefix = "layer-";

// What decides the bytes of a run.
std::string Fingerprint(const WeightSource& source, const std::string& identity,
                        const QuantizeRecipe& recipe, std::span<const std::vector<int32_t>> samples,
                        const ops::Backend& backend) {
  XXH3_state_t* hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  for (const std::vector<int32_t>& sample : samples) {
    const size_t length = sample.size();
    XXH3_64bits_update(hash, &length, sizeof(length));
    XXH3_64bits_update(hash, sample.data(), length * sizeof(int32_t));
  }
  const uint64_t digest = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return "calibration " + std::to_string(kCalibration) + "\n" + SpecToJson(source.spec()) + "\n" +
         identity + "\n" + DescribeScheme(recipe.scheme) + " scales " +
         std::to_string(static_cast<int>(recipe.input_scales)) + " alpha " +
         std::to_string(recipe.smooth_alpha) + "\nsamples " + std::to_string(digest) + "\n" +
         backend.Describe() + "\n";
}

Result<CalibrationRows> RowsOf(const ModelSpec& spec,
                               std::span<const std::vector<int32_t>> samples) {
  if (samples.empty()) return InvalidArgument("there is no sample to calibrate with");
  CalibrationRows rows;
  for (const std::vector<int32_t>& sample : samples) {
    const auto length = static_cast<int32_t>(sample.size());
    if (length > spec.max_positions) {
      return InvalidArgument("a calibration sample has " + std::to_string(length) +
                             " tokens, and the model's longest context is " +
                             std::to_string(spec.max_positions) +
                             "; --calib_max_seq_length cuts samples");
    }
    rows.lengths.push_back(length);
    rows.total += length;
    rows.longest = std::max(rows.longest, length);
  }
  const PromptRules rules = PromptRulesOf(spec, rows.longest);
  for (const std::vector<int32_t>& sample : samples) {
    const auto layout = LayOutPrompt(rules, sample);
    if (!layout.ok()) return layout.status().Annotate("a calibration sample");
    rows.layouts.push_back(*layout);
  }
  return rows;
}

}  // namespace

CalibrationRun::CalibrationRun(fs::path folder, WeightSource& source, const QuantizeRecipe& recipe,
                               std::span<const std::vector<int32_t>> samples, CalibrationRows rows,
                               ops::Backend& backend, ThreadPool& pool)
    : folder_(std::move(folder)),
      source_(source),
      recipe_(recipe),
      samples_(samples.begin(), samples.end()),
      backend_(backend),
      pool_(pool),
      rows_(std::move(rows)) {}

Result<std::unique_ptr<CalibrationRun>> CalibrationRun::Open(
    const fs::path& folder, WeightSource& source, const std::string& identity,
    const QuantizeRecipe& recipe, std::span<const std::vector<int32_t>> samples,
    ops::Backend& backend, ThreadPool& pool) {
  TANDEM_RETURN_IF_ERROR(CheckLoadable(source.spec(), backend, {.layers = QuantScheme{}}));
  TANDEM_ASSIGN_OR_RETURN(CalibrationRows rows, RowsOf(source.spec(), samples));
  std::unique_ptr<CalibrationRun> run(
      new CalibrationRun(folder, source, recipe, samples, std::move(rows), backend, pool));
  TANDEM_RETURN_IF_ERROR(run->TakeFolder(Fingerprint(source, identity, recipe, samples, backend)));
  return run;
}

Status CalibrationRun::TakeFolder(const std::string& fingerprint) {
  const fs::path file = folder_ / kFingerprintFile;
  std::error_code error;
  if (NameExists(folder_)) {
    const auto found = ReadTextFile(file);
    if (found.ok() && *found == fingerprint) return {};
    // Only a folder of ours is emptied; without the fingerprint it is one that was being begun or
    // removed.
    const bool ours =
        std::ranges::all_of(fs::directory_iterator(folder_, error), [](const auto& entry) {
          const std::string name = entry.path().filename().string();
          return name.starts_with(kFingerprintFile) || name.starts_with(kHiddenPrefix) ||
                 name.starts_with(kLayerPrefix);
        });
    if (!found.ok() && !ours) {
      return FailedPrecondition(folder_.string() +
                                ": is in the way of calibration's files; remove it");
    }
    fs::remove_all(folder_, error);
  }
  fs::create_directories(folder_, error);
  if (error) return Unavailable(folder_.string() + ": cannot be made: " + error.message());
  return WriteFileAtomically(file, fingerprint);
}

fs::path CalibrationRun::HiddenPath(int64_t layer) const {
  return folder_ / (kHiddenPrefix + std::to_string(layer));
}
fs::path CalibrationRun::LayerPath(int64_t layer) const {
  return folder_ / (kLayerPrefix + std::to_string(layer) + ".safetensors");
}

int64_t CalibrationRun::LayersDone() const {
  int64_t layer = 0;
  while (layer < source_.spec().num_layers() && NameExists(LayerPath(layer))) ++layer;
  return layer;
}

Result<CalibrationEstimate> CalibrationRun::Estimate() const {
  return EstimateCalibration(source_.spec(), rows_, recipe_, LayersDone(), backend_, pool_);
}

Status CalibrationRun::EmbedSamples(LayerPass& pass) {
  if (NameExists(HiddenPath(0))) return {};
  for (const std::vector<int32_t>& sample : samples_) {
    for (const int32_t token : sample) {
      if (token >= 0 && token < source_.spec().vocab_size) continue;
      return InvalidArgument("token " + std::to_string(token) +
                             " of a calibration sample is outside of the vocabulary");
    }
  }
  TANDEM_ASSIGN_OR_RETURN(const auto file, AtomicFileWriter::Create(HiddenPath(0)));
  TANDEM_RETURN_IF_ERROR(
      pass.Embed(source_, samples_, [&](int64_t, int64_t count, const void* rows) {
        return file->Append(std::span(static_cast<const std::byte*>(rows),
                                      static_cast<size_t>(count * HiddenRowBytes(source_.spec()))));
      }));
  source_.Release();
  return file->Commit();
}

Status CalibrationRun::RunLayer(LayerPass& pass, int64_t layer, const Progress& progress) {
  TANDEM_ASSIGN_OR_RETURN(const auto hidden, MappedFile::Open(HiddenPath(layer)));
  const auto row_bytes = static_cast<size_t>(HiddenRowBytes(source_.spec()));
  if (hidden->bytes().size() != row_bytes * static_cast<size_t>(rows_.total)) {
    return DataLoss(HiddenPath(layer).string() +
                    ": has another size than the samples; remove the folder and start again");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto next, AtomicFileWriter::Create(HiddenPath(layer + 1)));
  Status stopped;
  TANDEM_ASSIGN_OR_RETURN(
      const LayerStatistics statistics,
      pass.Run(
          source_, layer,
          [&](int64_t first, int64_t count, void* out) -> Status {
            TANDEM_RETURN_IF_ERROR(stopped);
            std::memcpy(out, hidden->bytes().data() + static_cast<size_t>(first) * row_bytes,
                        static_cast<size_t>(count) * row_bytes);
            return {};
          },
          [&](int64_t, int64_t count, const void* rows) {
            return next->Append(std::span(static_cast<const std::byte*>(rows),
                                          static_cast<size_t>(count) * row_bytes));
          },
          [&](double of_layer) { stopped = progress(of_layer); }));
  TANDEM_RETURN_IF_ERROR(stopped);
  TANDEM_ASSIGN_OR_RETURN(const LayerCalibration calibration,
                          Calibrate(source_, layer, statistics, recipe_, backend_, pool_));
  // In this order: a layer that is done is followed by its hidden states.
  TANDEM_RETURN_IF_ERROR(next->Commit());
  TANDEM_RETURN_IF_ERROR(WriteCalibration(LayerPath(layer), calibration));
  std::error_code ignored;
  fs::remove(HiddenPath(layer), ignored);
  return {};
}

Status CalibrationRun::Run(const Progress& progress) {
  const int64_t layers = source_.spec().num_layers();
  const int64_t first = LayersDone();
  if (first == layers) return {};
  LayerPass pass(backend_, rows_);
  if (first == 0) TANDEM_RETURN_IF_ERROR(EmbedSamples(pass));
  for (int64_t layer = first; layer < layers; ++layer) {
    TANDEM_RETURN_IF_ERROR(RunLayer(pass, layer, [&](double of_layer) {
      return progress((static_cast<double>(layer) + of_layer) / static_cast<double>(layers));
    }));
  }
  return {};
}

Result<LayerCalibration> CalibrationRun::Get(int64_t layer) const {
  return ReadCalibration(LayerPath(layer), source_.spec(), layer, recipe_);
}

std::string CalibrationRun::DescribeKept() const {
  return std::to_string(LayersDone()) + " of " + std::to_string(source_.spec().num_layers()) +
         " layers are calibrated and kept in " + folder_.string();
}

void CalibrationRun::Remove() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace tandem
