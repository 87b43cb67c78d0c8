#include "apps/server/url_loader.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "apps/lmi/store.h"
#include "apps/models/session.h"
#include "base/file.h"
#include "base/reason.h"
#include "sources/model_source.h"

namespace tandem::apps {
namespace {

using serve::kserve::ModelState;

// Memory is what an engine that is right lacks when it is loaded beside others.
Status AsMemory(const Status& status) {
  return status.code() == Code::kFailedPrecondition ? ResourceExhausted(status.message()) : status;
}

}  // namespace

UrlLoader::UrlLoader(const OptionValues& values, ModelRepository::OpenEngine open,
                     serve::ModelRegistry& engines, serve::kserve::Repository& models, ReadUrl read)
    : values_(values),
      open_(std::move(open)),
      engines_(engines),
      models_(models),
      read_(std::move(read)) {}

void UrlLoader::NoteStart(std::string name, std::string url,
                          std::optional<serve::lmi::ModelSettings> settings) {
  const MutexLock lock(mutex_);
  origins_.insert_or_assign(std::move(name),
                            serve::lmi::ModelOrigin{.url = std::move(url), .settings = settings});
}

serve::lmi::ModelOrigin UrlLoader::OriginOf(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto found = origins_.find(name);
  return found == origins_.end() ? serve::lmi::ModelOrigin() : found->second;
}

Status UrlLoader::Load(const serve::lmi::LoadRequest& request) {
  // The repository knows names that the registry does not: those of an engine's other models, and
  // of models that are not ready.
  if (engines_.Find(request.name).ok() || models_.Has(request.name)) {
    return InvalidArgument(fmt::format("Model \"{}\" is already registered.", request.name))
        .WithReason(Reason::kAlreadyExists);
  }
  models_.SetState(request.name, ModelState::kLoading, "");
  const auto settings = Open(request);
  if (settings.ok()) {
    const MutexLock lock(mutex_);
    origins_.insert_or_assign(request.name, serve::lmi::ModelOrigin{request.url, true, *settings});
  } else {
    // A name that a request made up is nobody's failure.
    models_.SetState(request.name, ModelState::kUnavailable, settings.status().message());
    models_.Forget(request.name);
  }
  return settings.status();
}

Result<std::optional<serve::lmi::ModelSettings>> UrlLoader::Open(
    const serve::lmi::LoadRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const UrlModel asked, read_(values_, request.url));
  Result<std::shared_ptr<ServedEngine>> engine = open_(asked.values);
  if (!engine.ok()) return AsMemory(engine.status());
  TANDEM_RETURN_IF_ERROR(AddTextModel(request.name, *engine, engines_, models_));
  return asked.http;
}

Status UrlLoader::Unload(std::string_view name) {
  const serve::lmi::ModelOrigin origin = OriginOf(name);
  if (!origin.by_request && origin.url.empty() && !models_.Has(name)) {
    return NotFound(fmt::format("Model or workflow not found: {}", name));
  }
  if (!origin.by_request) {
    return InvalidArgument(
        fmt::format("model {} was loaded at the start of the server, and stays to its end", name));
  }
  TANDEM_RETURN_IF_ERROR(engines_.Remove(name));
  models_.SetState(name, ModelState::kUnavailable, "unloaded");
  models_.Forget(name);
  const MutexLock lock(mutex_);
  std::erase_if(origins_, [name](const auto& row) { return row.first == name; });
  return {};
}

Result<UrlModel> TargetOfUrl(const OptionValues& values, const std::string& url) {
  const std::string target = LocateLmiModel(url, {});
  if (!IsRemoteSource(target) && !NameExists(target)) {
    return NotFound(fmt::format("url: there is no folder {}", target));
  }
  const auto& rows = ModelOptionRows();
  // The draft of the command line belongs to its own target.
  const std::string_view draft = rows.RowOf<&ModelOptions::draft>().name;
  OptionValues found(values.specs());
  for (const OptionSpec& spec : values.specs()) {
    if (!values.IsSet(spec) || spec.name == draft) continue;
    const bool is_list = spec.type == OptionType::kTexts;
    TANDEM_RETURN_IF_ERROR(found.Set(
        spec.name, is_list ? values.Texts(spec) : std::vector{values.Given(spec)}, "url"));
  }
  TANDEM_RETURN_IF_ERROR(found.Set(rows.RowOf<&ModelOptions::target>().name, {target}, "url"));
  return UrlModel{std::move(found)};
}

}  // namespace tandem::apps
