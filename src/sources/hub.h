// Models of a hub with the interface of huggingface.co, in the cache of huggingface_hub:
// models--OWNER--MODEL/{refs,blobs,snapshots}. Folders that the one has downloaded serve the other.
// Any thread.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/status.h"
#include "sources/model_source.h"

namespace tandem {

// OWNER/MODEL or MODEL, as hubs name models.
bool IsHubId(std::string_view id);

// The snapshot's folder. When the hub cannot be reached and a complete snapshot of this revision is
// there, that is taken, with a warning.
Result<std::filesystem::path> FetchFromHub(std::string_view id, const SourceOptions& options);

}  // namespace tandem
