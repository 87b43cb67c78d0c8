// What `tandem inspect` says of a model. Main thread.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/cli/command.h"
#include "engine_folder/source.h"

namespace tandem::apps {

// Prints the model's description, line by line, and returns the same as JSON. `config`: the options
// that the source was opened with.
nlohmann::ordered_json DescribeModel(const ModelSource& source, const ConfigOptions& config,
                                     const Console& console);

// The kind and the size of a folder's tokenizer, or what is wrong with it. UNIMPLEMENTED in a build
// without tokenizers.
Result<std::string> DescribeTokenizer(const std::filesystem::path& folder);

}  // namespace tandem::apps
