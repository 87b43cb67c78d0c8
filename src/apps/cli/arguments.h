// The words after `tandem VERB`, read by the rows of its options. Pure functions; any thread.
//
//   --name value, --name=value   '-' and '_' in a name are the same; the last value wins, and
//                                several values collect.
//   A word that begins with -- and holds no space before its '=' is an option and never a value:
//   a value of that form is written --name=--value. A lone -- ends the options.
//   A flag takes the next word only when that is true or false (or enable, disable ...), so that
//   both `--flag MODEL` and `--flag enable` mean what they say.
#pragma once

#include <span>
#include <string_view>

#include "base/options.h"
#include "base/status.h"

namespace tandem::apps {

// INVALID_ARGUMENT names the option as it was typed and what is wrong with it.
Status ReadArguments(std::span<const std::string_view> words, OptionValues& values);

// Whether -h or --help is among the options.
bool AsksForHelp(std::span<const std::string_view> words);

}  // namespace tandem::apps
