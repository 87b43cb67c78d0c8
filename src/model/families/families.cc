#include "model/families/families.h"

#include <array>

#include "model/families/llama.h"
#include "model/json_fields.h"

namespace tandem {
namespace {

const std::array kFamilies = {LlamaFamily()};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

Result<const Family*> FindFamily(std::string_view architecture) {
  std::string supported;
  for (const Family& family : kFamilies) {
    for (const std::string_view name : family.architectures) {
      if (name == architecture) return &family;
      supported += (supported.empty() ? "" : ", ") + std::string(name);
    }
  }
  return Unimplemented("architecture \"" + std::string(architecture.substr(0, 100)) +
                       "\" is not supported; supported are: " + supported);
}

Result<ModelSpec> SpecFromHfConfig(const std::string& config_json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Parse(config_json));
  const std::vector<std::string> architectures = config.Texts("architectures");
  TANDEM_RETURN_IF_ERROR(config.status());
  if (architectures.empty()) {
    return InvalidArgument("architectures: is missing; it names the kind of model");
  }
  TANDEM_ASSIGN_OR_RETURN(const Family* family, FindFamily(architectures.front()));
  return family->spec_from_hf(config_json);
}

}  // namespace tandem
