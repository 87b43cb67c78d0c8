#include "sources/source_cache.h"

#include <chrono>
#include <thread>

#include "base/log.h"

namespace tandem {

Status MakeFolders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return {};
  return FailedPrecondition(folder.string() + ": cannot be made: " + error.message() +
                            "; name another folder with --download_dir");
}

Result<std::unique_ptr<FileLock>> WaitForLock(const std::filesystem::path& path,
                                              std::string_view what,
                                              const std::function<Status()>& check) {
  TANDEM_RETURN_IF_ERROR(MakeFolders(path.parent_path()));
  for (bool told = false;; told = true) {
    auto lock = FileLock::Take(path);
    if (lock.ok() || lock.status().code() != Code::kUnavailable) return lock;
    if (!told) LogInfo("{}: another process fetches it; waiting until that has ended", what);
    if (check) TANDEM_RETURN_IF_ERROR(check());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace tandem
