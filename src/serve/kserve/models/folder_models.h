// The models of a model repository: their folders read, and models made from them. Pure functions
// but for reading files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/kserve/model_parameters.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

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

// What a model takes from others of its repository.
struct ModelContext {
  ModelPtr engine;                  // null: none; only built-in models need none
  bool exclude_input = false;       // from answers, unless a request says otherwise
  bool add_special_tokens = true;   // around prompts
  bool skip_special_tokens = true;  // from the text of answers
  bool is_decoupled = false;
};

// The model under the configuration of its folder, with the tensors that models of its kind have
// here; a built-in model (builtin_models.h) keeps those of the configuration. UNIMPLEMENTED for a
// kind that is not known, and without an engine for a kind that needs one.
Result<InferModelPtr> MakeModel(const FolderModel& model, const ModelContext& context);

}  // namespace tandem::serve::kserve
