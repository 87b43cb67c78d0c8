// The folders of a model repository. Functions that read files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/kserve/model_parameters.h"

namespace tandem::serve::kserve {

// A model's folder, read.
struct FolderModel {
  std::string name;
  ModelParameters parameters;
  std::vector<std::string> steps;  // models that an ensemble is composed of
  std::shared_ptr<const inference::ModelConfig> config;
  std::vector<std::string> defaults;  // taken where a template's variables were not filled in
  std::vector<std::string> notes;     // what was not understood, or has no effect
};

// The folders of `repository` that hold a config.pbtxt, in the order of their names. NOT_FOUND when
// the folder cannot be read.
Result<std::vector<std::string>> ListModels(const std::filesystem::path& repository);

// `json`: a configuration that replaces the file; empty: none. NOT_FOUND without a config.pbtxt,
// INVALID_ARGUMENT with file, line and key, UNIMPLEMENTED for what this server does not do.
Result<FolderModel> ReadModel(const std::filesystem::path& repository, const std::string& name,
                              std::string_view json = {});

}  // namespace tandem::serve::kserve
