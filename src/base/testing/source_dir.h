// Where the source tree stands, for tests that read files of it. Compiled in one place, so that the
// tests' own objects are the same in every checkout and ccache shares them.
#pragma once

#include <filesystem>

namespace tandem {

std::filesystem::path SourceDir();

}  // namespace tandem
