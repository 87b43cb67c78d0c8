// The table of model families: which one a config belongs to. Data and pure functions; a new family
// is a row here and a file under families/.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/config_options.h"
#include "model/family.h"

namespace tandem {

std::span<const Family> Families();
// By architecture name; UNIMPLEMENTED lists what is supported.
Result<const Family*> FindFamily(std::string_view architecture);
// The family that made the spec, or null.
const Family* FamilyOf(const ModelSpec& spec);
// Where a folder of the family keeps a weight. A part without rows, such as an input scale, applies
// to the whole fused tensor.
TensorSource SourceOf(const Family& family, const ModelSpec& spec, const WeightId& id);
// The spec of a Hugging Face config.json, by the family that its "architectures" name. An option
// that the family does not have is INVALID_ARGUMENT. added_tokens: the text of added_tokens.json,
// which names the tokens that some configs leave out; empty without.
Result<ModelSpec> SpecFromHfConfig(const std::string& config_json,
                                   const ConfigOptions& options = {},
                                   const std::string& added_tokens = {});

}  // namespace tandem
