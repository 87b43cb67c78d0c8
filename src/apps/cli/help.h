// The text of --help, the completion script and docs/cli.md, made from the rows of the commands.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "apps/cli/command.h"

namespace tandem::apps {

// Help text with lines of at most `width` characters; a longer word gets a line to itself.
std::string ProgramHelp(size_t width);
std::string CommandHelp(const Command& command, size_t width);

std::string BashCompletion();
std::string ZshCompletion();
// docs/cli.md
std::string CommandLineReference();

}  // namespace tandem::apps
