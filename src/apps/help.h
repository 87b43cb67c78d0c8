// What --help, the completion script and docs/cli.md say, made of the rows of the commands. Pure
// functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "apps/command.h"

namespace tandem::apps {

// Lines of at most `width` characters, as far as their words allow.
std::string ProgramHelp(size_t width);
std::string CommandHelp(const Command& command, size_t width);

std::string BashCompletion();
std::string ZshCompletion();
// docs/cli.md
std::string CommandLineReference();

}  // namespace tandem::apps
