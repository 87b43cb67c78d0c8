#include "tensor/zip_directory.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/little_endian.h"
#include "base/printable.h"

namespace tandem {
namespace {

// The layout of the records: PKWARE's APPNOTE 6.3, sections 4.3 to 4.5.
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kZip64End = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;
constexpr uint64_t kLocalHeaderBytes = 30;
constexpr uint64_t kCentralHeaderBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kZip64EndBytes = 56;
constexpr uint64_t kZip64LocatorBytes = 20;

constexpr uint16_t kEncrypted = 1u << 0;
constexpr uint16_t kSizesFollow = 1u << 3;  // after the data; the local header may have zeros
constexpr uint16_t kStored = 0;
constexpr uint16_t kZip64Extra = 1;  // the extra field that holds what does not fit into 32 bits

using Bytes = std::span<const std::byte>;

template <typename T>
T At(Bytes bytes, uint64_t offset) {
  return LoadLittleEndian<T>(bytes.data() + offset);
}

std::string_view AsText(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A field of a record that ZIP64 replaces, and its value then.
template <typename T>
constexpr T kInZip64 = std::numeric_limits<T>::max();

// Where the central directory is.
struct Directory {
  uint64_t files = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t records = 0;  // begin of the records after it
};

std::optional<uint64_t> FindEnd(Bytes archive) {
  if (archive.size() < kEndBytes) return std::nullopt;
  const uint64_t last = archive.size() - kEndBytes;
  const uint64_t first = last - std::min<uint64_t>(last, UINT16_MAX);
  for (uint64_t at = last + 1; at-- > first;) {
    if (At<uint32_t>(archive, at) != kEnd) continue;
    if (At<uint16_t>(archive, at + 20) == last - at) return at;  // the comment ends the file
  }
  return std::nullopt;
}

// With a locator before the record at `end`, the ZIP64 record has the values.
Status ReadZip64End(Bytes archive, uint64_t end, Directory& directory) {
  if (end < kZip64LocatorBytes) return {};
  const uint64_t locator = end - kZip64LocatorBytes;
  if (At<uint32_t>(archive, locator) != kZip64Locator) return {};
  const auto at = At<uint64_t>(archive, locator + 8);
  if (At<uint32_t>(archive, locator + 4) != 0 || At<uint32_t>(archive, locator + 16) > 1) {
    return Unimplemented("the ZIP archive is split over several disks");
  }
  if (at > locator || locator - at < kZip64EndBytes || At<uint32_t>(archive, at) != kZip64End) {
    return DataLoss("the ZIP64 record at its end is not where its locator says");
  }
  if (At<uint32_t>(archive, at + 16) != 0 || At<uint32_t>(archive, at + 20) != 0) {
    return Unimplemented("the ZIP archive is split over several disks");
  }
  const Directory wide{.files = At<uint64_t>(archive, at + 32),
                       .begin = At<uint64_t>(archive, at + 48),
                       .bytes = At<uint64_t>(archive, at + 40),
                       .records = at};
  const auto agree = [](uint64_t narrow, uint64_t all_ones, uint64_t value) {
    return narrow == all_ones || narrow == value;
  };
  if (!agree(directory.files, kInZip64<uint16_t>, wide.files) ||
      !agree(directory.begin, kInZip64<uint32_t>, wide.begin) ||
      !agree(directory.bytes, kInZip64<uint32_t>, wide.bytes)) {
    return DataLoss("the two records at its end disagree about the ZIP directory");
  }
  directory = wide;
  return {};
}

Result<Directory> FindDirectory(Bytes archive) {
  const std::optional<uint64_t> end = FindEnd(archive);
  if (!end) return DataLoss("not a ZIP archive, or its end is missing");
  if (At<uint16_t>(archive, *end + 4) != 0 || At<uint16_t>(archive, *end + 6) != 0) {
    return Unimplemented("the ZIP archive is split over several disks");
  }
  Directory directory{.files = At<uint16_t>(archive, *end + 10),
                      .begin = At<uint32_t>(archive, *end + 16),
                      .bytes = At<uint32_t>(archive, *end + 12),
                      .records = *end};
  TANDEM_RETURN_IF_ERROR(ReadZip64End(archive, *end, directory));
  if (directory.begin > directory.records ||
      directory.records - directory.begin != directory.bytes) {
    return DataLoss("the ZIP directory does not end where the records after it begin");
  }
  return directory;
}

// A file as one of its two headers describes it.
struct Header {
  std::string_view name = {};
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t crc32 = 0;
  uint64_t stored_bytes = 0;
  uint64_t bytes = 0;
  uint64_t local = 0;  // where the local header is; in the central header only
  uint64_t size = 0;   // of this header
};

// Replaces the fields that are kInZip64 by those of the ZIP64 extra field, in the format's order.
Status ReadZip64Extra(Bytes extra, std::initializer_list<uint64_t*> fields) {
  std::vector<uint64_t*> wide;
  for (uint64_t* field : fields) {
    if (*field == kInZip64<uint32_t>) wide.push_back(field);
  }
  if (wide.empty()) return {};
  while (extra.size() >= 4) {
    const auto id = At<uint16_t>(extra, 0);
    const uint64_t bytes = At<uint16_t>(extra, 2);
    extra = extra.subspan(4);
    if (bytes > extra.size()) break;
    if (id != kZip64Extra) {
      extra = extra.subspan(bytes);
      continue;
    }
    if (bytes < 8 * wide.size()) break;
    for (size_t i = 0; i < wide.size(); ++i) *wide[i] = At<uint64_t>(extra, 8 * i);
    return {};
  }
  return DataLoss("its ZIP64 sizes are missing");
}

Result<Header> ReadCentralHeader(Bytes directory) {
  if (directory.size() < kCentralHeaderBytes || At<uint32_t>(directory, 0) != kCentralHeader) {
    return DataLoss("the ZIP directory holds something other than a file's header");
  }
  const uint64_t name_bytes = At<uint16_t>(directory, 28);
  const uint64_t extra_bytes = At<uint16_t>(directory, 30);
  const uint64_t comment_bytes = At<uint16_t>(directory, 32);
  Header header{.flags = At<uint16_t>(directory, 8),
                .method = At<uint16_t>(directory, 10),
                .crc32 = At<uint32_t>(directory, 16),
                .stored_bytes = At<uint32_t>(directory, 20),
                .bytes = At<uint32_t>(directory, 24),
                .local = At<uint32_t>(directory, 42),
                .size = kCentralHeaderBytes + name_bytes + extra_bytes + comment_bytes};
  if (header.size > directory.size()) {
    return DataLoss("a file's header reaches beyond the ZIP directory");
  }
  header.name = AsText(directory.subspan(kCentralHeaderBytes, name_bytes));
  const auto disk = At<uint16_t>(directory, 34);
  if (disk != 0 && disk != kInZip64<uint16_t>) {
    return Unimplemented("the ZIP archive is split over several disks");
  }
  TANDEM_RETURN_IF_ERROR(
      ReadZip64Extra(directory.subspan(kCentralHeaderBytes + name_bytes, extra_bytes),
                     {&header.bytes, &header.stored_bytes, &header.local}));
  return header;
}

// `before`: the part of the archive before the directory.
Result<Header> ReadLocalHeader(Bytes before, uint64_t at) {
  const Status outside = DataLoss("its local header is not where the ZIP directory says");
  if (at > before.size() || before.size() - at < kLocalHeaderBytes) return outside;
  const Bytes bytes = before.subspan(at);
  if (At<uint32_t>(bytes, 0) != kLocalHeader) return outside;
  const uint64_t name_bytes = At<uint16_t>(bytes, 26);
  const uint64_t extra_bytes = At<uint16_t>(bytes, 28);
  Header header{.flags = At<uint16_t>(bytes, 6),
                .method = At<uint16_t>(bytes, 8),
                .stored_bytes = At<uint32_t>(bytes, 18),
                .bytes = At<uint32_t>(bytes, 22),
                .size = kLocalHeaderBytes + name_bytes + extra_bytes};
  if (header.size > bytes.size()) return outside;
  header.name = AsText(bytes.subspan(kLocalHeaderBytes, name_bytes));
  TANDEM_RETURN_IF_ERROR(ReadZip64Extra(bytes.subspan(kLocalHeaderBytes + name_bytes, extra_bytes),
                                        {&header.bytes, &header.stored_bytes}));
  return header;
}

// The file's bytes.
Result<Bytes> FindData(Bytes before, const Header& central) {
  if ((central.flags & kEncrypted) != 0) return Unimplemented("it is encrypted");
  if (central.method != kStored) {
    return Unimplemented("it is compressed; only files that are stored as they are can be mapped");
  }
  TANDEM_ASSIGN_OR_RETURN(const Header local, ReadLocalHeader(before, central.local));
  const auto agree = [&local](uint64_t here, uint64_t there) {
    return here == there || (here == 0 && (local.flags & kSizesFollow) != 0);
  };
  if (local.name != central.name || local.flags != central.flags ||
      local.method != central.method || central.stored_bytes != central.bytes ||
      !agree(local.bytes, central.bytes) || !agree(local.stored_bytes, central.bytes)) {
    return DataLoss("its local header and the ZIP directory disagree");
  }
  const Bytes rest = before.subspan(central.local + local.size);
  if (central.bytes > rest.size()) return DataLoss("it reaches beyond the archive's files");
  return rest.first(central.bytes);
}

std::string Quoted(std::string_view name) {
  constexpr size_t kMaxShown = 120;
  return "\"" + Printable(name.substr(0, kMaxShown)) + (name.size() > kMaxShown ? "..." : "") +
         "\"";
}

// No byte may belong to two files, nor to a file and another's header.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string_view name;
};
Status CheckExtents(std::vector<Extent>& extents) {
  std::ranges::sort(extents, {}, &Extent::begin);
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      return DataLoss(Quoted(extents[i].name) + ": it overlaps " + Quoted(extents[i - 1].name));
    }
  }
  return {};
}

constexpr std::array<uint32_t, 256> kCrcOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
    table[byte] = crc;
  }
  return table;
}();

}  // namespace

uint32_t Crc32(Bytes bytes) {
  uint32_t crc = ~0u;
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kCrcOfByte[(crc ^ static_cast<uint32_t>(byte)) & 0xffu];
  }
  return ~crc;
}

Result<ZipDirectory> ReadZipDirectory(Bytes archive) {
  TANDEM_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(archive));
  const Bytes before = archive.first(directory.begin);
  Bytes left = archive.subspan(directory.begin, directory.bytes);
  ZipDirectory files;
  std::vector<Extent> extents;
  while (!left.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const Header header, ReadCentralHeader(left));
    left = left.subspan(header.size);
    const auto data = FindData(before, header);
    if (!data.ok()) return data.status().Annotate(Quoted(header.name));
    if (!files.try_emplace(header.name, *data, header.crc32).second) {
      return DataLoss(Quoted(header.name) + ": it is in the ZIP directory twice");
    }
    const auto end = static_cast<uint64_t>(data->data() - archive.data()) + data->size();
    extents.push_back({header.local, end, header.name});
  }
  if (files.size() != directory.files) {
    return DataLoss("the ZIP directory holds " + std::to_string(files.size()) +
                    " files, the record after it says " + std::to_string(directory.files));
  }
  TANDEM_RETURN_IF_ERROR(CheckExtents(extents));
  return files;
}

}  // namespace tandem
