#include "apps/models/model_content.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"
#include "checkpoint/output_folder.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

// Of a file of weights: all of a small one.
constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kBlocks = 64;

bool IsWeights(const fs::path& name) {
  return name.extension() == ".safetensors" || name.extension() == ".bin";
}

bool IsOfModel(const fs::path& name) {
  return IsWeights(name) || name == kConfigFile || name.string().ends_with(".index.json") ||
         IsSideFile(name.string());
}

// Of blocks at equal distances, the first and the last bytes among them.
uint64_t DigestOfBlocks(std::span<const std::byte> bytes) {
  if (bytes.size() <= kBlocks * kBlockBytes) return Hash64(bytes, 0);
  uint64_t digest = 0;
  const size_t last = bytes.size() - kBlockBytes;
  for (size_t i = 0; i < kBlocks; ++i) {
    const size_t begin = last / (kBlocks - 1) * i;
    digest = Hash64(bytes.subspan(i + 1 < kBlocks ? begin : last, kBlockBytes), digest);
  }
  return digest;
}

Result<std::string> LineOf(const fs::path& path) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file->bytes();
  const std::string name = path.filename().string();
  if (!IsWeights(path.filename())) {
    return fmt::format("{} {} {}\n", name, bytes.size(), Checksum(bytes));
  }
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return FailedPrecondition(path.string() + ": " + error.message());
  return fmt::format("{} {} {:016x} at {}\n", name, bytes.size(), DigestOfBlocks(bytes),
                     time.time_since_epoch().count());
}

}  // namespace

Result<std::string> ContentOf(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored) && IsOfModel(entry->path().filename())) {
      files.push_back(entry->path());
    }
  }
  if (error) return FailedPrecondition(folder.string() + ": cannot list: " + error.message());
  std::ranges::sort(files);
  std::string content;
  for (const fs::path& file : files) {
    TANDEM_ASSIGN_OR_RETURN(const std::string line, LineOf(file));
    content += line;
  }
  return content;
}

}  // namespace tandem::apps
