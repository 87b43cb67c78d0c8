// Where this program keeps what it can make again: downloads, quantized models. Any thread.
#pragma once

#include <filesystem>

#include "base/status.h"

namespace tandem {

// $DJL_CACHE_DIR, as DJL Serving's containers set it; $XDG_CACHE_HOME/tandem; ~/.cache/tandem. The
// folder need not exist. FAILED_PRECONDITION if none of these variables is set.
Result<std::filesystem::path> CacheFolder();

}  // namespace tandem
