// The path of the source tree, for tests that read files from it. Only one file is compiled with
// it, so that the tests' own objects are the same in every checkout and ccache shares them.
#pragma once

#include <filesystem>

namespace tandem {

std::filesystem::path SourceDir();

}  // namespace tandem
