#include "base/cache_folder.h"

#include <cstdlib>

namespace tandem {
namespace {

std::filesystem::path FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::filesystem::path() : std::filesystem::path(value);
}

}  // namespace

Result<std::filesystem::path> CacheFolder() {
  if (auto folder = FromEnvironment("DJL_CACHE_DIR"); !folder.empty()) return folder;
  // Relative paths are invalid there, and ignored, as its specification demands.
  if (auto folder = FromEnvironment("XDG_CACHE_HOME"); folder.is_absolute()) {
    return folder / "tandem";
  }
  if (auto home = FromEnvironment("HOME"); !home.empty()) return home / ".cache" / "tandem";
  return FailedPrecondition(
      "there is no folder for caches: set DJL_CACHE_DIR, XDG_CACHE_HOME or HOME");
}

}  // namespace tandem
