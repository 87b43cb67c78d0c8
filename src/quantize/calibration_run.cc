#include "quantize/calibration_run.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "model/decoder/weights.h"
#include "model/prompt_rules.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// What decides the bytes of a run.
std::string Fingerprint(const WeightSource& source, const std::string& identity,
                        const QuantizeRecipe& recipe, std::span<const std::vector<int32_t>> samples,
                        int64_t batch_samples, const ops::Backend& backend) {
  XXH3_state_t* hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  for (const std::vector<int32_t>& sample : samples) {
    const size_t length = sample.size();
    XXH3_64bits_update(hash, &length, sizeof(length));
    XXH3_64bits_update(hash, sample.data(), length * sizeof(int32_t));
  }
  const uint64_t digest = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return SpecToJson(source.spec()) + "\n" + identity + "\n" + DescribeScheme(recipe.scheme) +
         " scales " + std::to_string(static_cast<int>(recipe.input_scales)) + " alpha " +
         std::to_string(recipe.smooth_alpha) + "\nsamples " + std::to_string(digest) +
         (batch_samples > 0 ? " by " + std::to_string(batch_samples) : std::string()) + "\n" +
         backend.Describe() + "\n";
}

// For people, who count from 1.
std::string NameOfSample(size_t index) { return "calibration sample " + std::to_string(index + 1); }

Result<CalibrationRows> RowsOf(const ModelSpec& spec, std::span<const std::vector<int32_t>> samples,
                               int64_t batch_samples) {
  if (samples.empty()) return InvalidArgument("there is no sample to calibrate with");
  CalibrationRows rows;
  rows.batch_samples = batch_samples;
  for (const std::vector<int32_t>& sample : samples) {
    const auto length = static_cast<int32_t>(sample.size());
    if (length > spec.max_positions) {
      return InvalidArgument(NameOfSample(rows.lengths.size()) + " has " + std::to_string(length) +
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
    if (!layout.ok()) return layout.status().Annotate(NameOfSample(rows.layouts.size()));
    rows.layouts.push_back(*layout);
  }
  return rows;
}

// Files of hidden states: a tensor for each batch of samples, each with its checksum.
TensorInfo BatchInfo(const ModelSpec& spec, int64_t first_row, int64_t count) {
  return {"rows." + std::to_string(first_row), spec.dtype, {count, spec.hidden_size}};
}

Result<std::unique_ptr<SafetensorsWriter>> CreateHidden(const fs::path& path, const ModelSpec& spec,
                                                        const CalibrationRows& rows) {
  std::vector<TensorInfo> infos;
  for (const SampleBatch& batch : BatchesOf(rows)) {
    infos.push_back(BatchInfo(spec, batch.first_row, batch.rows));
  }
  return SafetensorsWriter::Create(path, std::move(infos));
}

LayerPass::WriteRows WriteInto(SafetensorsWriter& file, const ModelSpec& spec) {
  return [&](int64_t first, int64_t count, const void* rows) {
    const TensorInfo info = BatchInfo(spec, first, count);
    return file.Append({const_cast<void*>(rows), info.dtype, info.shape, {}});
  };
}

Status ReadHidden(const TensorFile& file, const TensorInfo& batch, void* out) {
  const auto found = file.tensors().find(batch.name);
  const bool fits = file.has_checksums() && found != file.tensors().end() &&
                    found->second.dtype == batch.dtype && found->second.shape == batch.shape;
  if (!fits) {
    return DataLoss(file.path().string() + ": does not hold " + QuotedTensorName(batch.name) +
                    " of these samples");
  }
  TANDEM_RETURN_IF_ERROR(file.Verify(batch.name));
  std::memcpy(out, found->second.data, static_cast<size_t>(found->second.NumBytes()));
  return {};
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
    int64_t batch_samples, ops::Backend& backend, ThreadPool& pool) {
  TANDEM_RETURN_IF_ERROR(CheckLoadable(source.spec(), backend, {.layers = QuantScheme{}}));
  TANDEM_ASSIGN_OR_RETURN(CalibrationRows rows, RowsOf(source.spec(), samples, batch_samples));
  std::unique_ptr<CalibrationRun> run(
      new CalibrationRun(folder, source, recipe, samples, std::move(rows), backend, pool));
  TANDEM_RETURN_IF_ERROR(
      run->folder_.Take(Fingerprint(source, identity, recipe, samples, batch_samples, backend),
                        source.spec().num_layers()));
  return run;
}

Result<CalibrationEstimate> CalibrationRun::Estimate() const {
  return EstimateCalibration(source_.spec(), rows_, recipe_, LayersDone(), backend_, pool_);
}

Status CalibrationRun::EmbedSamples(LayerPass& pass) {
  if (NameExists(folder_.HiddenFile(0))) return {};
  for (size_t i = 0; i < samples_.size(); ++i) {
    for (const int32_t token : samples_[i]) {
      if (token >= 0 && token < source_.spec().vocab_size) continue;
      return InvalidArgument("token " + std::to_string(token) + " of " + NameOfSample(i) +
                             " is outside of the vocabulary");
    }
  }
  const ModelSpec& spec = source_.spec();
  TANDEM_ASSIGN_OR_RETURN(const auto file, CreateHidden(folder_.HiddenFile(0), spec, rows_));
  TANDEM_RETURN_IF_ERROR(pass.Embed(source_, samples_, WriteInto(*file, spec)));
  source_.Release();
  return file->Commit();
}

Status CalibrationRun::RunLayer(LayerPass& pass, int64_t layer, const Progress& progress) {
  const ModelSpec& spec = source_.spec();
  const auto hidden = SafetensorsFile::Open(folder_.HiddenFile(layer));
  if (!hidden.ok()) return Damaged(hidden.status());
  TANDEM_ASSIGN_OR_RETURN(const auto next,
                          CreateHidden(folder_.HiddenFile(layer + 1), spec, rows_));
  Status stopped;
  TANDEM_ASSIGN_OR_RETURN(
      const LayerStatistics statistics,
      pass.Run(
          source_, layer,
          [&](int64_t first, int64_t count, void* out) -> Status {
            TANDEM_RETURN_IF_ERROR(stopped);
            return Damaged(ReadHidden(**hidden, BatchInfo(spec, first, count), out));
          },
          WriteInto(*next, spec), [&](double of_layer) { stopped = progress(of_layer); }));
  TANDEM_RETURN_IF_ERROR(stopped);
  TANDEM_ASSIGN_OR_RETURN(const LayerCalibration calibration,
                          Calibrate(source_, layer, statistics, recipe_, backend_, pool_));
  // In this order: a layer that is done is followed by its hidden states.
  TANDEM_RETURN_IF_ERROR(next->Commit());
  TANDEM_RETURN_IF_ERROR(WriteCalibration(folder_.LayerFile(layer), calibration));
  std::error_code ignored;
  fs::remove(folder_.HiddenFile(layer), ignored);
  return {};
}

Status CalibrationRun::Run(const Progress& progress) {
  const int64_t layers = source_.spec().num_layers();
  const int64_t first = LayersDone();
  // Before the hours that the other layers may take.
  for (int64_t layer = 0; layer < first; ++layer) {
    TANDEM_RETURN_IF_ERROR(Get(layer).status());
  }
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
  auto calibration = ReadCalibration(folder_.LayerFile(layer), source_.spec(), layer, recipe_);
  if (!calibration.ok()) return Damaged(calibration.status());
  return calibration;
}

// A fault of a file that is kept, with what to do.
Status CalibrationRun::Damaged(const Status& why) const {
  if (why.ok()) return why;
  return DataLoss(why.message() + "; delete the folder " + folder_.path().string() +
                  " to start calibration over");
}

std::string CalibrationRun::DescribeKept() const {
  return std::to_string(LayersDone()) + " of " + std::to_string(source_.spec().num_layers()) +
         " layers are calibrated and kept in " + folder_.path().string();
}

void CalibrationRun::Remove() {
  // What stays does no harm: the next run takes it over.
  if (const Status removed = folder_.Remove(); !removed.ok()) LogWarning("{}", removed.message());
}

}  // namespace tandem
