#include "comm/gpu_links.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "comm/nccl_library.h"

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

Result<std::string> NcclVersion() {
  TANDEM_ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Load());
  return nccl->Version();
}

}  // namespace tandem
