// What a model's folder holds, as text to compare: it differs where a model made from the folder
// would. Pure function of the files; any thread.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace tandem::apps {

// A line for each file of the model and of its tokenizer, sorted by name: size and checksum; of a
// file of weights, which may have a hundred gigabytes, its size, its time of modification and a
// checksum of blocks all over it. So a copy of the folder that keeps the times has the same content
// wherever it is, and weights that were changed in place do not, nor do others of the same time.
Result<std::string> ContentOf(const std::filesystem::path& folder);

}  // namespace tandem::apps
