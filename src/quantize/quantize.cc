#include "quantize/quantize.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/thread_pool.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/hf_writer.h"
#include "checkpoint/output_folder.h"
#include "quantize/quantized_source.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// What decides the weights; not what a run itself may write into the model's folder.
bool IsOfModel(const fs::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".safetensors" || extension == ".bin" || file.filename() == "config.json" ||
         file.filename().string().ends_with(".index.json");
}

// Names, sizes and times of the model's files: what a run that goes on compares.
std::string IdentityOf(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (entry.is_directory(ignored) || !IsOfModel(entry.path())) continue;
    const auto size = entry.file_size(ignored);
    const auto time = entry.last_write_time(ignored).time_since_epoch().count();
    files.push_back(entry.path().filename().string() + " " + std::to_string(size) + " " +
                    std::to_string(time));
  }
  std::ranges::sort(files);
  std::string identity = folder.string();
  for (const std::string& file : files) identity += "\n" + file;
  return identity;
}

// Of an error that leaves calibration as it was, so that the next run goes on: a signal, a full
// disk, a device that was lost.
Status WithKept(const Status& error, const CalibrationRun* run) {
  const Code code = error.code();
  const bool goes_on = code == Code::kCancelled || code == Code::kFailedPrecondition ||
                       code == Code::kResourceExhausted || code == Code::kUnavailable;
  if (run == nullptr || !goes_on) return error;
  return {code, error.message() + "; " + run->DescribeKept() +
                    ", and the same command goes on from there"};
}

Status Calibrate(CalibrationRun& run, const QuantizeEvents& events) {
  if (events.estimate) {
    TANDEM_ASSIGN_OR_RETURN(const CalibrationEstimate estimate, run.Estimate());
    events.estimate(estimate);
  }
  return run.Run(
      [&](double done) { return events.calibrating ? events.calibrating(done) : Status(); });
}

}  // namespace

Result<WriteReport> Quantize(const QuantizeOptions& options,
                             std::span<const std::vector<int32_t>> samples, ops::Backend& backend,
                             const QuantizeEvents& events) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader,
                          OpenAsDType(options.model_dir, options.dtype, options.config));
  if (!reader->spec().quantization.is_plain() || !reader->spec().exceptions.empty()) {
    return InvalidArgument(options.model_dir.string() + ": is quantized already (" +
                           DescribeScheme(reader->spec().quantization) +
                           "), and served and built as it is; to quantize it otherwise, name the "
                           "model that it was made from");
  }
  return Quantize(*reader, IdentityOf(options.model_dir), options, samples, backend, events);
}

Result<WriteReport> Quantize(WeightSource& plain, const std::string& identity,
                             const QuantizeOptions& options,
                             std::span<const std::vector<int32_t>> samples, ops::Backend& backend,
                             const QuantizeEvents& events) {
  const Sharding& sharding = options.sharding;
  const ModelFolder model{options.model_dir, options.config, options.tokenizer_dir};
  ThreadPool pool(options.num_threads, /*pin=*/false);
  std::unique_ptr<CalibrationRun> run;
  QuantizedSource::CalibrationOf calibration;
  const QuantizeRecipe& recipe = options.recipe;
  QuantizedSource checked(plain, recipe, nullptr, pool);
  if (recipe.calibrates()) TANDEM_RETURN_IF_ERROR(CheckCalibrated(plain.spec()));
  TANDEM_RETURN_IF_ERROR(ValidateSpec(checked.spec()));
  if (options.folder == FolderKind::kHuggingFace) {
    TANDEM_RETURN_IF_ERROR(CheckHfFolder(checked.spec(), model));
  }
  TANDEM_RETURN_IF_ERROR(CheckSharding(checked.spec(), sharding));
  TANDEM_ASSIGN_OR_RETURN(const auto output,
                          OutputFolder::Create(options.output_dir, OutputOf(options.folder)));
  TANDEM_RETURN_IF_ERROR(output->CheckRoom(StoredBytes(checked.spec())));
  if (recipe.calibrates()) {
    TANDEM_ASSIGN_OR_RETURN(
        run, CalibrationRun::Open(output->Beside(".calibration"), plain, identity, recipe, samples,
                                  options.batch_samples, backend, pool));
    const Status calibrated = Calibrate(*run, events);
    if (!calibrated.ok()) return WithKept(calibrated, run.get());
    calibration = [&run](int64_t layer) { return run->Get(layer); };
  }
  QuantizedSource source(plain, recipe, std::move(calibration), pool);
  auto written = WriteModel(source, options.folder, sharding, model, *output, events.writing);
  if (!written.ok()) return WithKept(written.status(), run.get());
  if (run) run->Remove();
  return written;
}

}  // namespace tandem
