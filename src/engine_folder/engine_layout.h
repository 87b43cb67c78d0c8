// The fixed parts of an engine file, shared by its writer and reader.
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::engine_layout {

constexpr std::string_view kMagic = "TANDEMEN";     // at byte 0
constexpr std::string_view kEndMagic = "ENDTNDEM";  // the last bytes
constexpr uint64_t kFormat = 1;                     // at byte 8
constexpr uint64_t kHeadBytes = 64;                 // magic, format, zeros
constexpr uint64_t kTrailerBytes =
    64;  // table offset, table bytes, table checksum, zeros, end magic
constexpr uint64_t kAlignment = 64;

}  // namespace tandem::engine_layout
