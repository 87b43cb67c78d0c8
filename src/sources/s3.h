// Folders and archives in S3, in a cache: CACHE/download/HASH/VERSION, where HASH stands for the
// address and VERSION for what lies there. Any thread.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/status.h"
#include "sources/model_source.h"

namespace tandem {

// The local folder. When S3 cannot be reached, what the last start has downloaded is taken, with a
// warning.
Result<std::filesystem::path> FetchFromS3(std::string_view address, const SourceOptions& options);

}  // namespace tandem
