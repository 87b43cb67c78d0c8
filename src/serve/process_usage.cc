#include "serve/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace tandem::serve {
namespace {

constexpr int kFields = 52;  // of /proc/self/stat, as proc(5) numbers them from 1

// The numbers of /proc/self/stat by their number in proc(5); other fields read as 0.
Result<std::array<int64_t, kFields + 1>> ReadStat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  // The second field is the program's name in brackets and may contain any characters.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return NotFound("/proc/self/stat cannot be read");
  std::array<int64_t, kFields + 1> fields{};
  std::string_view rest = std::string_view(line).substr(name_end + 1);
  for (size_t field = 3; field < fields.size() && !rest.empty(); ++field) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string number(rest.substr(0, end));
    std::from_chars(number.c_str(), number.c_str() + number.size(), fields[field]);
    rest.remove_prefix(end);
  }
  return fields;
}

double Seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int64_t CountOpenFds() {
  std::error_code error;
  int64_t count = -1;  // the folder itself is open while it is read
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error)) {
    ++count;
  }
  return std::max<int64_t>(count, 0);
}

}  // namespace

Result<ProcessUsage> ReadProcessUsage() {
  TANDEM_ASSIGN_OR_RETURN(const auto stat, ReadStat());
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  ProcessUsage usage;
  usage.cpu_seconds = static_cast<double>(stat[14] + stat[15]) / ticks;
  usage.threads = stat[20];
  // Computed once: two clocks read one after another never give the same difference twice.
  static const double start =
      Seconds(CLOCK_REALTIME) - Seconds(CLOCK_BOOTTIME) + static_cast<double>(stat[22]) / ticks;
  usage.start_time_seconds = start;
  usage.virtual_bytes = stat[23];
  usage.resident_bytes = stat[24] * ::sysconf(_SC_PAGESIZE);
  usage.open_fds = CountOpenFds();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) usage.max_fds = static_cast<int64_t>(limit.rlim_cur);
  return usage;
}

}  // namespace tandem::serve
