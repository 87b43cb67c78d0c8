// Where a text that ParseJson has refused goes wrong, for readers of files. A pure function.
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem::serve {

// The line, from 1.
size_t JsonFaultLine(std::string_view text);

}  // namespace tandem::serve
