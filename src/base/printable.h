// Printable: makes text from outside (names in files, arguments, paths) safe to show. A pure
// function; any thread.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// Control characters of ASCII and of Latin-1 (which move a terminal's cursor or change its state)
// and bytes that are not UTF-8 are written as
// , \u001b or \xff: a line stays one line.
std::string Printable(std::string_view text);

}  // namespace tandem
