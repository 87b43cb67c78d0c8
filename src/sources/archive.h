// Unpack: a folder from an archive that nobody has vouched for. Called from one thread.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"
#include "sources/model_source.h"

namespace tandem {

struct UnpackLimits {
  int64_t max_bytes = 0;    // of all files together
  int64_t max_entries = 0;  // files, folders and links
  int64_t max_ratio = 200;  // of all files to the archive. Weights reach 2, and a bomb 1000
};
UnpackLimits UnpackLimitsOf(const SourceOptions& options);

// Unpacks a tar (also compressed) or zip archive. `folder` exists only once all of it is there.
// DATA_LOSS, and nothing remains, where an entry leads out of the folder (`..`, an absolute name, a
// link), is neither file, folder nor link, has a name that is too long, or where there are too many
// entries or bytes, or where it ends early; RESOURCE_EXHAUSTED where the disk is full.
Status Unpack(const std::filesystem::path& archive, const std::filesystem::path& folder,
              const UnpackLimits& limits);

}  // namespace tandem
