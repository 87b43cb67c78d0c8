// The version of this build. Constants; any thread.
#pragma once

#include <string>

namespace tandem::apps {

std::string Version();  // "0.1.0"
std::string Commit();   // "4f2c1ab"
// "tandem 0.1.0 (4f2c1ab)"; the commit is "unknown" outside a git checkout.
std::string VersionLine();

}  // namespace tandem::apps
