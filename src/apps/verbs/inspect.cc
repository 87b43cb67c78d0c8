// `tandem inspect PATH`: the contents of a model folder or a file of tensors.

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/verbs.h"
#include "apps/models/config_rows.h"
#include "apps/models/describe_model.h"
#include "apps/models/local_model.h"
#include "base/printable.h"
#include "checkpoint/check_weights.h"
#include "engine_folder/source.h"
#include "tensor/convert.h"
#include "tensor/tensor_file.h"

namespace tandem::apps {
namespace {

struct InspectOptions {
  std::filesystem::path path;
  bool tensors = false;
  bool check = false;
};

const BoundOptions<InspectOptions>& Rows() {
  constexpr std::string_view kArguments = "Arguments";
  static const BoundOptions<InspectOptions> rows({
      BindOption<InspectOptions, &InspectOptions::path>(
          {.name = "path",
           .meaning = "A Hugging Face folder, a checkpoint, an engine, an archive of one, "
                      "OWNER/MODEL of a "
                      "hub, s3://BUCKET/PATH, or a file of tensors: "
                      ".safetensors, or .bin, .pt or .pth from torch.save",
           .group = kArguments,
           .position = Position::kRequired}),
      BindOption<InspectOptions, &InspectOptions::tensors>(
          {.name = "tensors",
           .meaning = "List every tensor of the folder's files",
           .group = kArguments}),
      BindOption<InspectOptions, &InspectOptions::check>(
          {.name = "check",
           .meaning =
               "Read every weight: fail where a file is damaged, or a weight is NaN or infinite",
           .group = kArguments}),
  });
  return rows;
}

Status InspectFile(const std::filesystem::path& path, Console& console,
                   nlohmann::ordered_json& json) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, OpenTensorFile(path));
  console.Say(Printable(path.string()));
  for (const auto& [name, tensor] : file->tensors()) {
    console.Say(fmt::format("  {:60} {:5} {}", Printable(name), SafetensorsName(tensor.dtype),
                            tensor.shape.ToString()));
    json[path.filename().string()][name] = {{"dtype", SafetensorsName(tensor.dtype)},
                                            {"shape", tensor.shape.ToString()}};
  }
  return {};
}

Status InspectFolder(const std::filesystem::path& path, const ConfigOptions& config,
                     Console& console, nlohmann::ordered_json& json) {
  TANDEM_ASSIGN_OR_RETURN(const ModelSource source, OpenModel(path, std::nullopt, config));
  json = DescribeModel(source, config, console);
  return {};
}

// The weights of a folder, sorted by name: its safetensors files, or without any those that torch
// saved. Trainers leave other .bin files beside these.
Result<std::vector<std::filesystem::path>> TensorFilesIn(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> safetensors;
  std::vector<std::filesystem::path> torch;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (path.extension() == ".safetensors") {
      safetensors.push_back(path);
    } else if (path.extension() == ".bin" && path.stem().string().starts_with("pytorch_model")) {
      torch.push_back(path);
    }
  }
  if (error) return FailedPrecondition(folder.string() + ": cannot list: " + error.message());
  std::vector<std::filesystem::path>& paths = safetensors.empty() ? torch : safetensors;
  std::ranges::sort(paths);
  return paths;
}

// A folder may have any name.
bool IsFileOfTensors(const std::filesystem::path& path) {
  std::error_code error;
  return IsTensorFileName(path) && !std::filesystem::is_directory(path, error);
}

struct WeightCheck {
  std::vector<BadWeight> bad;
  bool by_checksums = true;  // every file has them
};

// Sorted by the names that the file gives its tensors.
Status CheckFile(const std::filesystem::path& path, WeightCheck& check) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, OpenTensorFile(path));
  check.by_checksums = check.by_checksums && file->has_checksums();
  for (const auto& [name, tensor] : file->tensors()) {
    TANDEM_RETURN_IF_ERROR(file->Verify(name));
    if (const int64_t count = CountNonFinite(tensor); count > 0) check.bad.push_back({name, count});
  }
  return {};
}

Result<WeightCheck> ReadWeights(const std::filesystem::path& path, const ConfigOptions& config) {
  WeightCheck check;
  if (IsFileOfTensors(path)) {
    TANDEM_RETURN_IF_ERROR(CheckFile(path, check));
    return check;
  }
  TANDEM_ASSIGN_OR_RETURN(const ModelSource source, OpenModel(path, std::nullopt, config));
  if (source.kind == ModelSource::Kind::kEngine) {
    TANDEM_ASSIGN_OR_RETURN(check.bad, FindNonFinite(*source.weights));
    TANDEM_RETURN_IF_ERROR(source.weights->Finish());
    return check;
  }
  TANDEM_ASSIGN_OR_RETURN(const auto files, TensorFilesIn(path));
  for (const std::filesystem::path& file : files) TANDEM_RETURN_IF_ERROR(CheckFile(file, check));
  return check;
}

Status CheckWeights(const std::filesystem::path& path, const ConfigOptions& config,
                    const Console& console) {
  constexpr size_t kNamed = 8;
  TANDEM_ASSIGN_OR_RETURN(const WeightCheck check, ReadWeights(path, config));
  const std::vector<BadWeight>& bad = check.bad;
  if (bad.empty()) {
    console.Say(fmt::format("weights       read and checked: each is a finite number{}",
                            check.by_checksums ? ", and all are as they were written"
                                               : "; the files have no checksums"));
    return {};
  }
  std::string names;
  for (size_t i = 0; i < std::min(kNamed, bad.size()); ++i) {
    names += fmt::format("{}{} ({})", i > 0 ? ", " : "", bad[i].name, bad[i].count);
  }
  return DataLoss(fmt::format("{}: NaN or infinity in {}{}", path.string(), names,
                              bad.size() > kNamed ? " and more" : ""));
}

Status Run(const OptionValues& values, Console& console) {
  InspectOptions options = Rows().Read(values);
  TANDEM_ASSIGN_OR_RETURN(options.path, LocalModel(options.path, values));
  const ConfigOptions config = ConfigOptionRows().Read(values);
  const std::filesystem::path& path = options.path;
  nlohmann::ordered_json json;
  if (IsFileOfTensors(path)) {
    TANDEM_RETURN_IF_ERROR(InspectFile(path, console, json));
  } else {
    TANDEM_RETURN_IF_ERROR(InspectFolder(path, config, console, json));
    if (options.tensors) {
      TANDEM_ASSIGN_OR_RETURN(const auto files, TensorFilesIn(path));
      for (const std::filesystem::path& file : files) {
        TANDEM_RETURN_IF_ERROR(InspectFile(file, console, json["tensors"]));
      }
    }
  }
  if (options.check) TANDEM_RETURN_IF_ERROR(CheckWeights(path, config, console));
  console.Result(json);
  return {};
}

}  // namespace

Command InspectCommand() {
  return {.name = "inspect",
          .summary = "Show the contents of a model folder or a file of tensors",
          .examples =
              "  tandem inspect MODEL --tensors\n"
              "  tandem inspect MODEL --check\n",
          .options = Join({Rows().specs(), SourceOptionRows().specs(), ConfigOptionRows().specs()}),
          .run = Run};
}

}  // namespace tandem::apps
