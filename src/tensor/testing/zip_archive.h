// A ZIP archive of stored files, byte by byte, for tests to read and to damage. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/little_endian.h"
#include "tensor/zip_directory.h"

namespace tandem {

// The first bytes of the records.
inline constexpr std::string_view kZipLocal = "PK\3\4";
inline constexpr std::string_view kZipCentral = "PK\1\2";
inline constexpr std::string_view kZipEnd = "PK\5\6";
inline constexpr std::string_view kZip64End = "PK\6\6";
inline constexpr std::string_view kZip64Locator = "PK\6\7";

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

template <typename... Fields>
void AppendFields(std::string& out, Fields... fields) {
  (AppendLittleEndian(fields, out), ...);
}

// With `zip64`, sizes and offsets are in the fields for 64 bits, as in archives above 4 GiB.
inline std::string ZipArchive(const std::vector<std::pair<std::string, std::string>>& files,
                              bool zip64 = false) {
  constexpr uint16_t kZero = 0;
  constexpr uint32_t kWide = UINT32_MAX;
  std::string archive;
  std::string directory;
  for (const auto& [name, data] : files) {
    const uint64_t at = archive.size();
    const uint64_t bytes = data.size();
    const auto narrow = [&](uint64_t value) {
      return zip64 ? kWide : static_cast<uint32_t>(value);
    };
    const auto name_bytes = static_cast<uint16_t>(name.size());
    const uint32_t crc = Crc32(AsBytes(data));
    std::string extra;
    if (zip64) AppendFields(extra, uint16_t{1}, uint16_t{16}, bytes, bytes);
    archive += kZipLocal;
    AppendFields(archive, kZero, kZero, kZero, kZero, kZero, crc, narrow(bytes), narrow(bytes),
                 name_bytes, static_cast<uint16_t>(extra.size()));
    archive.append(name).append(extra).append(data);
    if (zip64) {
      extra = std::string("\x99\x99\2\0zz", 6);  // an unknown field before it
      AppendFields(extra, uint16_t{1}, uint16_t{24}, bytes, bytes, at);
    }
    directory += kZipCentral;
    AppendFields(directory, kZero, kZero, kZero, kZero, kZero, kZero, crc, narrow(bytes),
                 narrow(bytes), name_bytes, static_cast<uint16_t>(extra.size()), kZero, kZero,
                 kZero, uint32_t{0}, narrow(at));
    directory.append(name).append(extra);
  }
  const uint64_t begin = archive.size();
  const uint64_t bytes = directory.size();
  const uint64_t count = files.size();
  archive += directory;
  const uint64_t records = archive.size();
  if (zip64) {
    archive += kZip64End;
    AppendFields(archive, uint64_t{44}, kZero, kZero, uint32_t{0}, uint32_t{0}, count, count, bytes,
                 begin);
    archive += kZip64Locator;
    AppendFields(archive, uint32_t{0}, records, uint32_t{1});
  }
  archive += kZipEnd;
  AppendFields(archive, kZero, kZero, static_cast<uint16_t>(count), static_cast<uint16_t>(count),
               static_cast<uint32_t>(bytes), zip64 ? kWide : static_cast<uint32_t>(begin), kZero);
  return archive;
}

// The archive with another value in a record: the first that begins with `record`.
template <typename T>
std::string WithField(std::string archive, std::string_view record, size_t offset, T value) {
  const size_t at = archive.find(record);
  TANDEM_CHECK(at != std::string::npos, "the archive has no such record");
  std::memcpy(archive.data() + at + offset, &value, sizeof(T));
  return archive;
}

}  // namespace tandem
