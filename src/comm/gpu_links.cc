#include "comm/gpu_links.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

std::string KindOf(const GpuLink& link) {
  if (!link.can_read) {
    return "cannot read each other's memory, so they cannot be ranks of one model";
  }
  return fmt::format("{}, each reads the other's memory (performance rank {})",
                     link.has_atomics ? "NVLink" : "PCIe", link.performance_rank);
}

}  // namespace

std::vector<std::string> DescribeLinks(const GpuLinks& links) {
  if (links.num_gpus < 2) {
    return {links.num_gpus == 0 ? "none: no GPU can be used" : "none: there is one GPU"};
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> kinds;
  for (const GpuLink& link : links.links) {
    const std::string kind = KindOf(link);
    auto row = std::ranges::find(kinds, kind, [](const auto& found) { return found.first; });
    if (row == kinds.end()) row = kinds.insert(row, {kind, {}});
    row->second.push_back(fmt::format("{}-{}", link.first, link.second));
  }
  std::vector<std::string> lines;
  for (const auto& [kind, pairs] : kinds) {
    lines.push_back(fmt::format("{}: {}", fmt::join(pairs, ", "), kind));
  }
  return lines;
}

std::string ShowNcclVersion(int code) {
  // 2.9 and later have two digits for the minor number.
  if (code >= 10000) {
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  }
  return fmt::format("{}.{}.{}", code / 1000, code / 100 % 10, code % 100);
}

std::optional<std::string> NcclVersion() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  using GetVersion = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(library, "ncclGetVersion"));
  int code = 0;
  // The library stays: its own threads may have started.
  if (get == nullptr || get(&code) != 0) return "unknown";
  return ShowNcclVersion(code);
}

}  // namespace tandem
