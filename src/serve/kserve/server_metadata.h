// What the server says about itself. Clients decide by name and version which features they may
// use, so these are those of the server that defines this protocol. Constant data; any thread.
#pragma once

#include <string_view>
#include <vector>

namespace tandem::serve::kserve {

inline constexpr std::string_view kServerName = "triton";
inline constexpr std::string_view kServerVersion = "2.56.0";
inline std::vector<std::string_view> ServerExtensions(bool has_shared_memory) {
  std::vector<std::string_view> extensions = {"model_repository",
                                              "model_repository(unload_dependents)",
                                              "model_configuration",
                                              "binary_tensor_data",
                                              "parameters",
                                              "statistics",
                                              "logging",
                                              "generate"};
  if (has_shared_memory) extensions.emplace_back("system_shared_memory");
  return extensions;
}

}  // namespace tandem::serve::kserve
