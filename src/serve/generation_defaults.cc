#include "serve/generation_defaults.h"

#include "base/file.h"
#include "serve/field_reader.h"
#include "serve/json.h"

namespace tandem::serve {
namespace {

Result<Json> ReadJsonFile(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  JsonLimits limits;
  limits.allow_duplicates = true;
  Result<Json> json = ParseJson(text, limits);
  if (!json.ok()) return DataLoss(path.string() + ": " + json.status().message());
  if (json->AsObject() == nullptr) return DataLoss(path.string() + ": not a JSON object");
  return json;
}

}  // namespace

Result<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir) {
  GenerationDefaults defaults;
  const std::filesystem::path path = model_dir / "generation_config.json";
  if (!NameExists(path)) return defaults;
  TANDEM_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  FieldReader fields(json);
  defaults.do_sample = fields.Boolean("do_sample");
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    if (parameter.has_model_default) fields.Read(parameter.name, defaults.sampling.*members.given);
  });
  if (!fields.status().ok()) return fields.status().Annotate(path.string());
  return defaults;
}

}  // namespace tandem::serve
