// What the server says about itself. Clients decide by name and version which features they may
// use, so these are those of the server that defines this protocol. Constant data.
#pragma once

#include <array>
#include <string_view>

namespace tandem::serve::kserve {

inline constexpr std::string_view kServerName = "triton";
inline constexpr std::string_view kServerVersion = "2.56.0";
inline constexpr std::array<std::string_view, 8> kServerExtensions = {
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
    "generate"};

}  // namespace tandem::serve::kserve
