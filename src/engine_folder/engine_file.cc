#include "engine_folder/engine_file.h"

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "base/little_endian.h"
#include "checkpoint/stored/stored_tensor.h"
#include "engine_folder/engine_layout.h"
#include "model/json_fields.h"
#include "tensor/convert.h"

namespace tandem {

std::filesystem::path EngineFilePath(const std::filesystem::path& folder, int64_t rank) {
  return folder / ("rank" + std::to_string(rank) + ".engine");
}

using namespace engine_layout;

namespace {

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// A shape whose elements take exactly `bytes`.
Result<Shape> ShapeOf(const std::vector<int64_t>& dims, DType dtype, uint64_t bytes) {
  if (dims.size() > Shape::kMaxRank) return DataLoss("has too many dimensions");
  int64_t total = static_cast<int64_t>(SizeOf(dtype));
  for (const int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(total, dim, &total)) {
      return DataLoss("has an impossible shape");
    }
  }
  if (static_cast<uint64_t>(total) != bytes) return DataLoss("has a shape of another size");
  return Shape::Of(dims);
}

}  // namespace

Status EngineFile::Damaged(const std::string& what) const {
  return DataLoss(path().string() + ": " + what);
}

Result<std::unique_ptr<EngineFile>> EngineFile::Open(const std::filesystem::path& path,
                                                     int64_t rank, int64_t world_size) {
  TANDEM_ASSIGN_OR_RETURN(auto mapped, MappedFile::Open(path));
  std::unique_ptr<EngineFile> file(new EngineFile(std::move(mapped)));
  TANDEM_ASSIGN_OR_RETURN(const std::string_view table, file->Table());
  TANDEM_RETURN_IF_ERROR(file->ReadTable(table, rank, world_size));
  const auto* start = reinterpret_cast<const char*>(file->file_->bytes().data());
  TANDEM_RETURN_IF_ERROR(file->CheckCoverage(static_cast<uint64_t>(table.data() - start)));
  return file;
}

// Checks head and trailer; returns the table's text after verifying its checksum.
Result<std::string_view> EngineFile::Table() const {
  const auto bytes = file_->bytes();
  const std::string_view text = AsText(bytes);
  if (!text.starts_with(kMagic)) {
    return Damaged(
        "is not an engine written by `tandem build` (engines compiled by TensorRT cannot be read: "
        "build again from the checkpoint)");
  }
  if (bytes.size() < kHeadBytes + kTrailerBytes || !text.ends_with(kEndMagic)) {
    return Damaged("is truncated: its trailer is missing");
  }
  const uint64_t format = LoadLittleEndian<uint64_t>(bytes.data() + kMagic.size());
  if (format != kFormat) {
    return Damaged("has format " + std::to_string(format) + "; this program reads format " +
                   std::to_string(kFormat));
  }
  if (!AllZero(bytes.subspan(16, kHeadBytes - 16))) return Damaged("the head is damaged");
  const auto trailer = bytes.last(kTrailerBytes);
  const uint64_t offset = LoadLittleEndian<uint64_t>(trailer.data());
  const uint64_t size = LoadLittleEndian<uint64_t>(trailer.data() + 8);
  const uint64_t trailer_offset = bytes.size() - kTrailerBytes;
  constexpr size_t kUsed = 16 + kChecksumDigits;
  const bool in_place = offset >= kHeadBytes && offset <= trailer_offset &&
                        offset % kAlignment == 0 && size == trailer_offset - offset;
  if (!in_place || !AllZero(trailer.subspan(kUsed, kTrailerBytes - kUsed - kEndMagic.size()))) {
    return Damaged("the trailer is damaged, or the file is truncated");
  }
  const auto table = bytes.subspan(offset, size);
  if (Checksum(table) != AsText(trailer.subspan(16, kChecksumDigits))) {
    return Damaged("the table of sections is damaged: its checksum differs");
  }
  return AsText(table);
}

Status EngineFile::ReadTable(std::string_view json, int64_t rank, int64_t world_size) {
  const auto table = JsonFields::Parse(json);
  if (!table.ok()) return Damaged("the table of sections: " + table.status().message());
  if (table->Int("rank") != rank || table->Int("world_size") != world_size) {
    return Damaged("was written for rank " + table->Shown("rank") + " of " +
                   table->Shown("world_size") + ", not " + std::to_string(rank) + " of " +
                   std::to_string(world_size));
  }
  const auto sections = table->Object("sections");
  if (!sections) return Damaged("the table of sections is missing");
  for (const std::string& name : sections->Keys()) {
    const auto entry = sections->Object(name);
    if (!entry) break;
    Section section;
    const auto dtype = ParseDType(entry->Text("dtype"));
    section.offset = static_cast<uint64_t>(std::max(entry->Int("offset"), int64_t{0}));
    section.bytes = static_cast<uint64_t>(std::max(entry->Int("bytes"), int64_t{0}));
    section.checksum = entry->Text("xxh3_128");
    const std::string where = "section \"" + name + "\"";
    if (!dtype) return Damaged(where + " has an unknown dtype");
    const auto shape = ShapeOf(entry->Ints("shape"), *dtype, section.bytes);
    if (!shape.ok()) return Damaged(where + " " + shape.status().message());
    const uint64_t size = file_->bytes().size();
    if (section.offset % kAlignment != 0 || section.offset > size ||
        section.bytes > size - section.offset) {
      return Damaged(where + " does not lie inside the file");
    }
    // The mapping is read-only; Tensor has one pointer type, and nothing writes through this one.
    auto* data = const_cast<std::byte*>(file_->bytes().data() + section.offset);
    section.tensor = {data, *dtype, *shape, Device{}};
    sections_.emplace(name, std::move(section));
  }
  return table->status().ok() ? Status()
                              : Damaged("the table of sections: " + table->status().message());
}

// Sections follow each other, and the gaps between them are zero: every byte is checked.
Status EngineFile::CheckCoverage(uint64_t table_offset) const {
  std::vector<std::pair<uint64_t, const std::string*>> order;
  for (const auto& [name, section] : sections_) order.emplace_back(section.offset, &name);
  std::sort(order.begin(), order.end());
  uint64_t covered = kHeadBytes;
  const auto check_gap = [&](uint64_t next, const std::string& what) -> Status {
    if (next < covered || next - covered >= kAlignment) {
      return Damaged(what + " does not follow the one before it");
    }
    if (AllZero(file_->bytes().subspan(covered, next - covered))) return {};
    return Damaged("the padding before " + what + " is damaged");
  };
  for (const auto& [offset, name] : order) {
    TANDEM_RETURN_IF_ERROR(check_gap(offset, "section \"" + *name + "\""));
    covered = offset + sections_.at(*name).bytes;
  }
  return check_gap(table_offset, "the table of sections");
}

Result<EngineFile::Section*> EngineFile::Find(const std::string& name) {
  const auto found = sections_.find(name);
  if (found != sections_.end()) return &found->second;
  return NotFound(path().string() + ": section \"" + name + "\" is missing");
}

Status EngineFile::Check(const RankTensor& tensor) {
  TANDEM_ASSIGN_OR_RETURN(const Section* section, Find(tensor.fused.name));
  return CheckStored(section->tensor, tensor.fused.part, tensor.shape, tensor.dtype,
                     PlaceOf(tensor.fused.name));
}

Result<Tensor> EngineFile::Read(const RankTensor& tensor, ScratchBuffers& /*scratch*/) {
  TANDEM_ASSIGN_OR_RETURN(Section * section, Find(tensor.fused.name));
  TANDEM_RETURN_IF_ERROR(Verify(tensor.fused.name, *section));
  return section->tensor;
}

Status EngineFile::Verify(const std::string& name, Section& section) const {
  if (section.verified) return {};
  if (Checksum(file_->bytes().subspan(section.offset, section.bytes)) != section.checksum) {
    return Damaged("section \"" + name + "\" is damaged: its checksum differs");
  }
  section.verified = true;
  return {};
}

Status EngineFile::Finish() {
  for (auto& [name, section] : sections_) TANDEM_RETURN_IF_ERROR(Verify(name, section));
  return {};
}

}  // namespace tandem
