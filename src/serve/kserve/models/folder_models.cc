#include "serve/kserve/models/folder_models.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <model_config.pb.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "serve/kserve/config_file.h"

namespace tandem::serve::kserve {
namespace {

namespace fs = std::filesystem;
constexpr const char* kConfigFile = "config.pbtxt";

Status ParseJsonConfig(std::string_view text, inference::ModelConfig& config) {
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(text.data(), text.size()), &config);
  if (status.ok()) return {};
  return FieldError("config", std::string(status.message()));
}

Status ReadConfig(const fs::path& repository, const std::string& name, std::string_view json,
                  inference::ModelConfig& config, std::vector<std::string>& defaults) {
  if (!json.empty()) return ParseJsonConfig(json, config);
  const fs::path file = repository / name / kConfigFile;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
  std::vector<Unfilled> unfilled;
  const std::string shown = name + "/" + kConfigFile;
  TANDEM_RETURN_IF_ERROR(ReadConfigText(text, shown, config, unfilled));
  if (!unfilled.empty()) defaults.push_back(DescribeUnfilled(shown, unfilled));
  return {};
}

// The model that a client names is the folder's: a config with another name would answer for it.
Status CheckName(const std::string& name, inference::ModelConfig& config) {
  if (config.name().empty()) config.set_name(name);
  if (config.name() == name) return {};
  return InvalidArgument(fmt::format("{}/{}: name: must be the folder's name, it is \"{}\"", name,
                                     kConfigFile, config.name()))
      .WithField("name");
}

}  // namespace

Result<std::vector<std::string>> ListModels(const fs::path& repository) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(repository, error), end; !error && entry != end;
       entry.increment(error)) {
    if (NameExists(entry->path() / kConfigFile)) names.push_back(entry->path().filename());
  }
  if (error) {
    return NotFound(fmt::format("{}: {}", repository.string(), error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<FolderModel> ReadModel(const fs::path& repository, const std::string& name,
                              std::string_view json) {
  if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.')) {
    return InvalidArgument(fmt::format("\"{}\" cannot be the name of a model", name));
  }
  FolderModel model;
  model.name = name;
  auto config = std::make_shared<inference::ModelConfig>();
  TANDEM_RETURN_IF_ERROR(ReadConfig(repository, name, json, *config, model.defaults));
  TANDEM_RETURN_IF_ERROR(CheckName(name, *config));
  TANDEM_ASSIGN_OR_RETURN(model.parameters, ReadModelParameters(*config, repository / name));
  for (const auto& step : config->ensemble_scheduling().step()) {
    model.steps.push_back(step.model_name());
  }
  for (const std::string& note : model.parameters.ignored) {
    model.notes.push_back(fmt::format("{}: without effect: {}", name, note));
  }
  for (const std::string& note : model.parameters.warnings) {
    model.notes.push_back(fmt::format("{}: {}", name, note));
  }
  model.config = std::move(config);
  return model;
}

}  // namespace tandem::serve::kserve
