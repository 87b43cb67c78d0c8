#include "checkpoint/quantize/quantize.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/thread_pool.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/quantize/hf_folder_writer.h"
#include "checkpoint/quantize/quantized_source.h"

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

}  // namespace

Result<QuantizeReport> Quantize(const QuantizeOptions& options,
                                std::span<const std::vector<int32_t>> samples,
                                ops::Backend& backend, const QuantizeEvents& events) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader,
                          OpenAsDType(options.model_dir, options.dtype, options.config));
  if (!reader->spec().quantization.is_plain() || !reader->spec().exceptions.empty()) {
    return InvalidArgument(options.model_dir.string() + ": is quantized already (" +
                           DescribeScheme(reader->spec().quantization) +
                           "); serve it as it is, or quantize the model that it was made from");
  }
  return Quantize(*reader, IdentityOf(options.model_dir), options, samples, backend, events);
}

Result<QuantizeReport> Quantize(WeightSource& plain, const std::string& identity,
                                const QuantizeOptions& options,
                                std::span<const std::vector<int32_t>> samples,
                                ops::Backend& backend, const QuantizeEvents& events) {
  const Sharding& sharding = options.sharding;
  ThreadPool pool(options.num_threads, /*pin=*/false);
  std::unique_ptr<CalibrationRun> run;
  QuantizedSource::CalibrationOf calibration;
  const QuantizeRecipe& recipe = options.recipe;
  QuantizedSource checked(plain, recipe, nullptr, pool);
  TANDEM_RETURN_IF_ERROR(ValidateSpec(checked.spec()));
  if (recipe.calibrates()) TANDEM_RETURN_IF_ERROR(CheckCalibrated(checked.spec()));
  if (options.export_hf) TANDEM_RETURN_IF_ERROR(CheckHfFolder(checked.spec()));
  TANDEM_RETURN_IF_ERROR(CheckSharding(checked.spec(), sharding));
  TANDEM_ASSIGN_OR_RETURN(const auto output,
                          OutputFolder::Create(options.output_dir, ".safetensors"));
  if (recipe.calibrates()) {
    TANDEM_ASSIGN_OR_RETURN(run, CalibrationRun::Open(output->Beside(".calibration"), plain,
                                                      identity, recipe, samples, backend, pool));
    if (events.estimate) {
      TANDEM_ASSIGN_OR_RETURN(const CalibrationEstimate estimate, run->Estimate());
      events.estimate(estimate);
    }
    TANDEM_RETURN_IF_ERROR(run->Run([&](double done) {
      if (events.calibrating) events.calibrating(done);
    }));
    calibration = [&run](int64_t layer) { return run->Get(layer); };
  }
  QuantizedSource source(plain, recipe, std::move(calibration), pool);
  TANDEM_RETURN_IF_ERROR(CopySideFiles(options.model_dir, output->temporary()));
  if (options.export_hf) {
    TANDEM_RETURN_IF_ERROR(
        WriteHfFolder(source, options.model_dir, output->temporary(), events.writing));
  } else {
    TANDEM_RETURN_IF_ERROR(WriteCheckpoint(source, sharding, output->temporary(), events.writing));
  }
  QuantizeReport report{source.spec(), sharding, output->Bytes()};
  TANDEM_RETURN_IF_ERROR(output->Commit());
  if (run) run->Remove();
  return report;
}

}  // namespace tandem
