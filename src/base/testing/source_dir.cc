#include "base/testing/source_dir.h"

namespace tandem {

std::filesystem::path SourceDir() { return TANDEM_SOURCE_DIR; }

}  // namespace tandem
