// What the caches of hubs, S3 and archives share: folders, and a lock for which one
// waits. Any thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "base/file_lock.h"
#include "base/status.h"

namespace tandem {

// Makes a folder and those above it. FAILED_PRECONDITION names the one that cannot be made.
Status MakeFolders(const std::filesystem::path& folder);

// Waits until no other process works on `what`; its folder is made. The lock is taken once the
// other one has ended, in whatever way. `check` as in SourceOptions.
Result<std::unique_ptr<FileLock>> WaitForLock(const std::filesystem::path& path,
                                              std::string_view what,
                                              const std::function<Status()>& check);

}  // namespace tandem
