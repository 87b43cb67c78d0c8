// The directory of a ZIP archive whose files are stored as they are, as torch.save writes it.
// Everything is validated: the records at the end (ZIP64 too), each file's two headers against each
// other, and that no two files overlap. Compressed or encrypted files and archives of several disks
// are refused. Checksums are for the caller to verify, since that reads the whole file. Pure
// functions over memory that the caller owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "base/status.h"

namespace tandem {

struct ZippedFile {
  std::span<const std::byte> bytes;
  uint32_t crc32 = 0;  // as the directory states it
};
// The files by their names; names and bytes are views of the archive.
using ZipDirectory = std::map<std::string_view, ZippedFile>;

Result<ZipDirectory> ReadZipDirectory(std::span<const std::byte> archive);

// The checksum of ZIP: polynomial 0x04c11db7, reflected.
uint32_t Crc32(std::span<const std::byte> bytes);

}  // namespace tandem
