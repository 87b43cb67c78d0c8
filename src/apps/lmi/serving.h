// A server as SageMaker's LMI containers start it: which models, from where, under which names,
// with which options. A constant once it is made.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/command.h"
#include "apps/lmi/config.h"
#include "apps/lmi/store.h"
#include "base/bound_options.h"

namespace tandem::apps {

std::vector<OptionSpec> LmiOptionRows();

// How the server fetches models.
struct LmiAccess {
  // The local folder of an archive, an address or a hub's model; of the last one without weights
  // only the small files. NOT_FOUND for a path that does not exist.
  std::function<Result<std::filesystem::path>(const std::string& source,
                                              const std::string& revision, bool with_weights)>
      fetch;
};
// Downloads as the options of `values` say; `check` as SourceOptions::check.
LmiAccess SystemLmiAccess(const OptionValues& values, std::function<Status()> check);

// A model by its address: what its engine is opened with, and how its routes answer.
struct UrlModel {
  OptionValues values;
  std::optional<serve::lmi::ModelSettings> http = {};  // of its own
};

class LmiServing {
 public:
  // Finds out which models there are, and gives options that are not set the server's values. Empty
  // where neither --as_lmi, nor the folder that MODEL names, nor without MODEL the environment or
  // SageMaker's folder asks for an LMI container. `environment`: of the process.
  static Result<std::optional<LmiServing>> Take(const Environment& environment,
                                                OptionValues& values);

  size_t num_models() const { return places_.size(); }
  const std::string& name(size_t model) const { return places_[model].name; }
  // The folder, archive or address; empty for a model that the environment alone names.
  const std::string& url(size_t model) const { return places_[model].url; }
  // Of the server's routes.
  const serve::lmi::Settings& http() const { return http_; }

  // The server's options with those of a model: its folder is fetched if need be.
  // What is worth telling is logged.
  Result<UrlModel> ModelValues(size_t model, const OptionValues& values,
                               const LmiAccess& access) const;
  // The same for a model that a request adds to these: its address is of the forms that
  // SERVING_LOAD_MODELS takes. Any thread, one call at a time.
  Result<UrlModel> AddedModelValues(const std::string& url, const OptionValues& values,
                                    const LmiAccess& access) const;
  // What was understood of all files and variables, as comments and properties, and the options
  // that follow. Archives are unpacked, but nothing is downloaded.
  Result<std::string> Show(const OptionValues& values) const;

 private:
  // A model's configuration, and the folder with its serving.properties (empty without one).
  struct Model {
    LmiConfig config;
    std::filesystem::path folder;
  };

  Status TakeServer(OptionValues& values);
  Status TakeAddress(OptionValues& values) const;
  // `number`: of models that are opened before this one.
  Result<Model> ReadModel(const LmiModelPlace& place, size_t number,
                          const std::filesystem::path& folder) const;
  static Result<std::filesystem::path> FolderOf(const LmiModelPlace& place,
                                                const LmiAccess& access);
  Result<std::filesystem::path> SourceOf(const Model& model, const LmiAccess& access) const;
  Result<UrlModel> ValuesOf(const LmiModelPlace& place, size_t number, const OptionValues& base,
                            const LmiAccess& access) const;

  Environment environment_;
  bool is_container_ = false;  // not just a folder with serving.properties
  LmiContext context_;
  std::filesystem::path config_file_;  // of the server; empty without one
  LmiGivenKeys server_keys_;
  LmiConfig server_;
  std::filesystem::path store_;
  std::vector<LmiModelPlace> places_;
  serve::lmi::Settings http_;
};

}  // namespace tandem::apps
