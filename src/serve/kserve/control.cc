#include "serve/kserve/control.h"

#include <fmt/format.h>
#include <model_config.pb.h>

#include <utility>
#include <variant>

#include "base/printable.h"

namespace tandem::serve::kserve {
namespace {

// The value of the one parameter that a request may have; a default one if it has none.
template <typename Value>
Result<Value> OnlyParameter(std::string_view known, std::string_view type,
                            const Parameters& parameters) {
  Value only{};
  for (const auto& [name, value] : parameters) {
    if (name != known) {
      return InvalidArgument(
                 fmt::format("parameter '{}' is not supported by this server; '{}' is the only one",
                             Printable(name), known))
          .WithField(name);
    }
    const Value* found = std::get_if<Value>(&value);
    if (found == nullptr) {
      return InvalidArgument(fmt::format("parameter '{}' must be {}", known, type))
          .WithField(known);
    }
    only = *found;
  }
  return only;
}

void RunControl(Repository& models, const std::function<Status()>& work, const ControlDone& done) {
  if (!models.RunControl([work, done] { done(work()); })) {
    done(ResourceExhausted("too many models wait to be loaded or unloaded"));
  }
}

}  // namespace

void LoadModel(Repository& models, const std::string& name, const Parameters& parameters,
               const ControlDone& done) {
  const Result<std::string> config = OnlyParameter<std::string>("config", "a string", parameters);
  if (!config.ok()) return done(config.status());
  RunControl(models, [&models, name, config = *config] { return models.Load(name, config); }, done);
}

void UnloadModel(Repository& models, const std::string& name, const Parameters& parameters,
                 const ControlDone& done) {
  const Result<bool> dependents =
      OnlyParameter<bool>("unload_dependents", "true or false", parameters);
  if (!dependents.ok()) return done(dependents.status());
  RunControl(
      models, [&models, name, dependents = *dependents] { return models.Unload(name, dependents); },
      done);
}

Result<std::vector<NamedStatistics>> StatisticsOf(const Repository& models,
                                                  std::optional<std::string_view> name,
                                                  std::string_view version) {
  std::vector<InferModelPtr> asked;
  if (!name) {
    asked = models.Models();
  } else {
    TANDEM_ASSIGN_OR_RETURN(InferModelPtr model, models.Find(*name, version));
    asked.push_back(std::move(model));
  }
  std::vector<NamedStatistics> statistics;
  for (const InferModelPtr& model : asked) {
    const std::string& known = model->config().name();
    const Result<StatisticsSnapshot> figures = models.Statistics(known);
    if (figures.ok()) statistics.push_back({known, *figures});  // else it was unloaded meanwhile
  }
  return statistics;
}

Result<TraceSettings> ChangeTraceSettings(const Repository& models,
                                          std::optional<std::string_view> name,
                                          std::string_view version, const TraceSettings& changes) {
  static const TraceSettings off = {{"trace_level", {"OFF"}}};
  if (name) TANDEM_RETURN_IF_ERROR(models.Find(*name, version).status());
  for (const auto& change : changes) {
    if (change.second.empty() || change == *off.begin()) continue;
    return Unimplemented(fmt::format("trace setting '{}': this server writes no traces",
                                     Printable(change.first)))
        .WithField(change.first);
  }
  return off;
}

}  // namespace tandem::serve::kserve
