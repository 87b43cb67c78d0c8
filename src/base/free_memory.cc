#include "base/free_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace tandem {
namespace {

// The number after `key` in a file of "Key:  123 kB" lines; with an empty key, the file's first
// number.
int64_t NumberIn(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (key.empty()) return word == "max" ? -1 : std::atoll(word.c_str());
    if (word == key && file >> word) return std::atoll(word.c_str());
  }
  return -1;
}

}  // namespace

int64_t FreeHostBytes() {
  int64_t free_bytes = NumberIn("/proc/meminfo", "MemAvailable:") * 1024;
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max", "");
  const int64_t used = NumberIn("/sys/fs/cgroup/memory.current", "");
  // Cached files count as used; the kernel gives them back.
  const int64_t cache =
      std::max<int64_t>(NumberIn("/sys/fs/cgroup/memory.stat", "inactive_file"), 0);
  if (limit > 0 && used >= 0) free_bytes = std::min(free_bytes, limit - used + cache);
  // `ulimit -v`: this process's mappings count against it.
  rlimit address_space{};
  if (::getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const int64_t mapped = NumberIn("/proc/self/statm", "") * ::sysconf(_SC_PAGESIZE);
    free_bytes = std::min(free_bytes, static_cast<int64_t>(address_space.rlim_cur) - mapped);
  }
  return std::max<int64_t>(free_bytes, 0);
}

}  // namespace tandem
