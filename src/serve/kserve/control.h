// What clients may ask of the server besides inference: to load and unload models, for statistics
// and for the trace settings. The protocol's rules for it, the same for every transport. Any
// thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/kserve/inference.h"
#include "serve/kserve/model_statistics.h"
#include "serve/kserve/repository.h"

namespace tandem::serve::kserve {

using ControlDone = std::function<void(const Status& status)>;

// Loads a model on the repository's own thread and then calls `done` there, once. A refusal is
// reported before this returns: INVALID_ARGUMENT, with the parameter as field, for any parameter
// but `config`, a string (JSON that replaces the stored configuration); RESOURCE_EXHAUSTED when too
// many models wait. `models` outlives the work.
void LoadModel(Repository& models, const std::string& name, const Parameters& parameters,
               const ControlDone& done);
// The same for unloading; the one parameter is `unload_dependents`, a bool.
void UnloadModel(Repository& models, const std::string& name, const Parameters& parameters,
                 const ControlDone& done);

struct NamedStatistics {
  std::string model;
  StatisticsSnapshot figures;
};
// Of the model, or without a name of all that can be called. Errors as Repository::Find.
Result<std::vector<NamedStatistics>> StatisticsOf(const Repository& models,
                                                  std::optional<std::string_view> name,
                                                  std::string_view version);

// Each setting's values; none stands for the default.
using TraceSettings = std::map<std::string, std::vector<std::string>, std::less<>>;
// The settings of the model, or without a name of the server, after the changes. Traces can
// only stay off: UNIMPLEMENTED, with the setting as field, for any other change. Errors for the
// model as Repository::Find.
Result<TraceSettings> ChangeTraceSettings(const Repository& models,
                                          std::optional<std::string_view> name,
                                          std::string_view version, const TraceSettings& changes);

}  // namespace tandem::serve::kserve
