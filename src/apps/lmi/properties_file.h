// Java's .properties files, as java.util.Properties reads them. Pure functions and plain values;
// any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::apps {

struct Property {
  std::string key;    // UTF-8, escapes decoded
  std::string value;  // the same; blanks at its end are part of it, and so is "# text" after it
  int line = 0;       // where its first line is, from 1
};

// The properties in the order of the file; of a key that comes twice the last one, in its own
// place. A file that is not UTF-8 is read as Latin-1. INVALID_ARGUMENT "line 3: ..." for \u without
// four hexadecimal digits; nothing else is an error in this format.
Result<std::vector<Property>> ParseProperties(std::string_view bytes);

}  // namespace tandem::apps
