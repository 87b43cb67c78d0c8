#include "sources/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/printable.h"
#include "sources/archive.h"
#include "sources/digest.h"
#include "sources/hub.h"
#include "sources/model_files.h"
#include "sources/s3.h"
#include "sources/source_cache.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kS3 = "s3://";

bool IsFileName(std::string_view name) {
  constexpr std::array<std::string_view, 8> kEnds = {
      ".safetensors", ".bin", ".pt", ".pth", ".json", ".gguf", ".engine", ".properties"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

void NameCodeIn(const fs::path& folder) {
  std::vector<std::string> names = NamesIn(folder);
  std::erase_if(names, [](const std::string& name) { return !IsCode(name); });
  NameCode(folder.string(), names);
}

// One folder in the cache for each state of an archive.
Result<fs::path> FetchArchive(const fs::path& archive, const SourceOptions& options) {
  std::error_code error;
  const fs::path whole = fs::canonical(archive, error);
  const auto bytes = fs::file_size(whole, error);
  const auto time = fs::last_write_time(whole, error).time_since_epoch().count();
  if (error) return FailedPrecondition(archive.string() + ": cannot be read: " + error.message());
  const fs::path& cache = options.cache_dir.empty() ? options.own_cache : options.cache_dir;
  const std::string hash = Sha256Hex(fmt::format("{} {} {}", whole.string(), bytes, time));
  const fs::path folder = cache / "archives" / hash.substr(0, 32);
  if (!NameExists(folder)) {
    fs::path lock_path = folder;
    lock_path += ".lock";
    TANDEM_ASSIGN_OR_RETURN(const auto lock,
                            WaitForLock(lock_path, archive.string(), options.check));
    if (!NameExists(folder)) {
      TANDEM_RETURN_IF_ERROR(Unpack(archive, folder, UnpackLimitsOf(options)));
    }
  }
  NameCodeIn(folder);
  return folder;
}

}  // namespace

std::string_view ArchiveStem(std::string_view name) {
  constexpr std::array<std::string_view, 9> kEnds = {
      ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".zip"};
  for (const std::string_view end : kEnds) {
    if (name.size() > end.size() && name.ends_with(end))
      return name.substr(0, name.size() - end.size());
  }
  return {};
}

bool IsArchiveName(std::string_view name) { return !ArchiveStem(name).empty(); }

bool IsRemoteSource(std::string_view source) {
  if (source.starts_with(kS3)) return true;
  if (!IsHubId(source) || IsArchiveName(source) || IsFileName(source)) return false;
  std::error_code ignored;
  const fs::path path(source);
  if (NameExists(path)) return false;
  return !path.has_parent_path() || !fs::exists(path.parent_path(), ignored);
}

Result<fs::path> FetchModel(std::string_view source, const SourceOptions& options) {
  if (source.starts_with(kS3)) return FetchFromS3(source, options);
  if (IsRemoteSource(source)) return FetchFromHub(source, options);
  const fs::path path(source);
  std::error_code error;
  if (fs::is_directory(path, error)) {
    NameCodeIn(path);
    return path;
  }
  if (fs::is_regular_file(path, error) && IsArchiveName(source)) return FetchArchive(path, options);
  if (!NameExists(path)) return NotFound(Printable(source) + ": does not exist");
  return InvalidArgument(Printable(source) +
                         ": is neither a folder nor an archive (.tar, .tar.gz, .tgz, .zip)");
}

}  // namespace tandem
