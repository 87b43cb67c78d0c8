// What the protocol says about the server and its models, as JSON. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "serve/kserve/control.h"
#include "serve/kserve/inference.h"
#include "serve/kserve/repository.h"

namespace tandem::serve::kserve {

// Name and version of the server that defines this protocol: clients use them to decide which
// features they may use.
std::string FormatServer(bool has_shared_memory);
std::string FormatMetadata(const inference::ModelConfig& config);
std::string FormatConfig(const inference::ModelConfig& config);
std::string FormatIndex(std::span<const ModelEntry> entries);

std::string FormatStatistics(std::span<const NamedStatistics> models);
std::string FormatTraceSettings(const TraceSettings& settings);
std::string FormatRegions(std::span<const SharedMemoryInfo> regions);

}  // namespace tandem::serve::kserve
