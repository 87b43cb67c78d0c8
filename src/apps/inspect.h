// What `tandem inspect` says of a folder's tokenizer. Main thread.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace tandem::apps {

// Its kind and its size, or what is wrong with it. UNIMPLEMENTED in a build without tokenizers.
Result<std::string> DescribeTokenizer(const std::filesystem::path& folder);

}  // namespace tandem::apps
