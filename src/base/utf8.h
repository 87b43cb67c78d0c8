// UTF-8 as bytes. Pure functions, safe on any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem {

// Length in bytes of the well-formed sequence at the start of `text`; 0 when there is none (RFC
// 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
size_t Utf8SequenceLength(std::string_view text);

// Whether all of `text` is well-formed.
bool IsUtf8(std::string_view text);

// Number of characters (code points) of well-formed text.
size_t CountCharacters(std::string_view text);

}  // namespace tandem
