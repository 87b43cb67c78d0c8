// Fuzz target: any bytes as an archive. Whatever it holds, all that is written lies in its folder;
// of a refused one nothing remains.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "sources/archive.h"

namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 512;

// Changed headers would all be refused for their sums.
void MendSums(std::string& archive) {
  for (size_t at = 0; at + kBlock <= archive.size(); at += kBlock) {
    if (archive.compare(at + 257, 5, "ustar") != 0) continue;
    archive.replace(at + 148, 8, 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(archive[at + i]);
    char digits[8];
    std::snprintf(digits, sizeof(digits), "%06o", sum & 0777777);
    archive.replace(at + 148, 7, digits, 7);
  }
}

// Two folders above the unpacked one, so that short ways out end where they are noticed.
struct World {
  World() : top(fs::temp_directory_path() / ("archive_fuzz." + std::to_string(::getpid()))) {
    tandem::ConfigureLog(tandem::LogLevel::kError, tandem::LogFormat::kText);
    fs::create_directories(top / "a" / "b");
  }
  ~World() {
    std::error_code ignored;
    fs::remove_all(top, ignored);
  }
  const fs::path top;
};

void CheckInside(const fs::path& folder) {
  const fs::path root = fs::canonical(folder);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string real = fs::canonical(entry.path()).string();
    TANDEM_CHECK(real == root.string() || real.starts_with(root.string() + "/"), real);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const World world;
  const fs::path file = world.top / "archive";
  const fs::path folder = world.top / "a" / "b" / "model";
  std::string archive(reinterpret_cast<const char*>(data), size);
  MendSums(archive);
  std::ofstream(file, std::ios::binary) << archive;
  const tandem::Status status =
      tandem::Unpack(file, folder, {.max_bytes = int64_t{1} << 20, .max_entries = 100});
  if (status.ok()) {
    CheckInside(folder);
    fs::remove_all(folder);
  }
  TANDEM_CHECK(status.ok() || !status.message().empty(), "an error without a message");
  TANDEM_CHECK(fs::is_empty(world.top / "a" / "b"), "something remains beside the folder");
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::recursive_directory_iterator(world.top)) ++entries;
  TANDEM_CHECK(entries == 3, "something was written outside");  // archive, a, a/b
  return 0;
}
