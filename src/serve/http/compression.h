// Bodies under a Content-Encoding: gzip and deflate. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem::serve {

// The body as it was before `encoding`: "gzip", "deflate", or "identity" and empty for none.
// INVALID_ARGUMENT when it is broken, or has more than `max_bytes` bytes; UNIMPLEMENTED for another
// encoding.
Result<std::string> Decompress(std::string_view encoding, std::string body, size_t max_bytes);

// The first of gzip and deflate that an Accept-Encoding header allows; empty: neither.
std::string_view ChooseEncoding(std::string_view accepted);
// `encoding`: what ChooseEncoding returned, not empty.
std::string Compress(std::string_view encoding, std::string_view body);

}  // namespace tandem::serve
