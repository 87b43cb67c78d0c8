// A config.json with ConfigOptions in it, for folders that other programs read: rotary options as
// the keys that the model's own code reads. Pure functions.
#pragma once

#include <string>

#include "base/status.h"
#include "model/config_options.h"

namespace tandem {

// A config.json that describes, without options, the model that `config_json` describes with them.
// The versions, which say what the model's code knows itself, are keys of ours. UNIMPLEMENTED names
// the rotary options that no key says. Without options the text is returned as it is.
Result<std::string> ConfigWithOptions(const std::string& config_json, const ConfigOptions& options,
                                      const std::string& added_tokens = {});

}  // namespace tandem
