#include "serve/generation_defaults.h"

#include <fmt/format.h>

#include "base/file.h"
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

Status WrongType(std::string_view name, std::string_view wanted, const Json& value) {
  return InvalidArgument(fmt::format("{} must be {}, not {}", name, wanted, value.KindName()));
}

Status ReadNumber(const Json& json, std::string_view name, std::optional<double>& out) {
  const Json* value = json.Find(name);
  if (value == nullptr || value->is_null()) return {};
  out = value->Number();
  return out ? Status() : WrongType(name, "a number", *value);
}

Status ReadFields(const Json& json, GenerationDefaults& out) {
  TANDEM_RETURN_IF_ERROR(ReadNumber(json, "temperature", out.temperature));
  TANDEM_RETURN_IF_ERROR(ReadNumber(json, "top_p", out.top_p));
  TANDEM_RETURN_IF_ERROR(ReadNumber(json, "min_p", out.min_p));
  TANDEM_RETURN_IF_ERROR(ReadNumber(json, "repetition_penalty", out.repetition_penalty));
  if (const Json* value = json.Find("top_k"); value != nullptr && !value->is_null()) {
    if (value->AsInt() == nullptr) return WrongType("top_k", "an integer", *value);
    out.top_k = *value->AsInt();
  }
  if (const Json* value = json.Find("do_sample"); value != nullptr && !value->is_null()) {
    if (value->AsBool() == nullptr) return WrongType("do_sample", "a boolean", *value);
    out.do_sample = *value->AsBool();
  }
  return {};
}

}  // namespace

Result<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir) {
  GenerationDefaults defaults;
  const std::filesystem::path path = model_dir / "generation_config.json";
  if (!NameExists(path)) return defaults;
  TANDEM_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  if (Status read = ReadFields(json, defaults); !read.ok()) return read.Annotate(path.string());
  return defaults;
}

}  // namespace tandem::serve
