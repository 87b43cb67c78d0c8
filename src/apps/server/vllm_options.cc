#include "apps/server/vllm_options.h"

#include <fmt/format.h>

#include <string_view>

namespace tandem::apps {
namespace {

constexpr std::string_view kGroup = "As vLLM has them";

constexpr OptionSpec kRows[] = {
    {.name = "gpu_memory_utilization",
     .type = OptionType::kText,
     .meaning = "Refused, because it counts the weights too: give --kv_cache_free_gpu_mem_fraction",
     .group = kGroup},
    {.name = "enable_auto_tool_choice",
     .type = OptionType::kFlag,
     .meaning = "Always so: a model may call the tools of a request",
     .group = kGroup},
};
constexpr const OptionSpec& kMemory = kRows[0];
constexpr const OptionSpec& kAutoTools = kRows[1];

}  // namespace

std::span<const OptionSpec> VllmOptionRows() { return kRows; }

Status CheckVllmOptions(const OptionValues& values) {
  if (values.IsSet(kMemory)) {
    return InvalidArgument(
        fmt::format("--{}: give --kv_cache_free_gpu_mem_fraction, the share of the memory that is "
                    "free after the weights are loaded, or --kv_cache_bytes",
                    kMemory.name));
  }
  if (values.IsSet(kAutoTools) && !values.Flag(kAutoTools)) {
    return InvalidArgument(fmt::format(
        "--{} false: requests with tools may always call them; \"tool_choice\": \"none\" forbids "
        "it for one",
        kAutoTools.name));
  }
  return {};
}

}  // namespace tandem::apps
