#include "tensor/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/little_endian.h"
#include "tensor/safetensors_header.h"

namespace tandem {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

Result<std::string_view> HeaderText(std::span<const std::byte> file) {
  if (file.size() < 8) return DataLoss("truncated: no room for the header's length");
  const uint64_t header_bytes = LoadLittleEndian<uint64_t>(file.data());
  if (header_bytes > kMaxHeaderBytes) {
    return DataLoss("the header's length of " + std::to_string(header_bytes) +
                    " bytes is above the format's limit of " + std::to_string(kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - 8) {
    return DataLoss("truncated: the header takes " + std::to_string(header_bytes) +
                    " bytes, the file has " + std::to_string(file.size() - 8) +
                    " after its length");
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
}

// The tensors must cover the data section from its first byte to its last, each byte once.
Status CheckCoverage(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string name = QuotedTensorName(entry.name);
    if (entry.begin < covered) return DataLoss(name + ": its bytes overlap another tensor's");
    if (entry.begin > covered) {
      return DataLoss(name + ": " + std::to_string(entry.begin - covered) +
                      " bytes before it belong to no tensor");
    }
    if (entry.end > data_bytes) {
      return DataLoss(name + ": it ends at byte " + std::to_string(entry.end) +
                      " of a data section of " + std::to_string(data_bytes) +
                      " bytes; the file is truncated");
    }
    covered = entry.end;
  }
  if (covered == data_bytes) return {};
  const std::string last = entries.empty() ? "the header" : QuotedTensorName(entries.back().name);
  return DataLoss(std::to_string(data_bytes - covered) + " bytes after " + last +
                  " belong to no tensor");
}

// Takes the checksums out of the metadata. A file in which some tensors have one is not as it was
// written: a name is damaged, or another program kept what it did not know.
Result<std::map<std::string, std::string>> TakeChecksums(SafetensorsHeader& header) {
  std::map<std::string, std::string> checksums;
  for (const auto& [key, value] : header.metadata) {
    if (key.starts_with(kChecksumKey)) checksums[key.substr(kChecksumKey.size())] = value;
  }
  std::erase_if(header.metadata,
                [](const auto& entry) { return entry.first.starts_with(kChecksumKey); });
  if (checksums.empty()) return checksums;
  for (const SafetensorsEntry& entry : header.entries) {
    if (checksums.contains(entry.name)) continue;
    return DataLoss(QuotedTensorName(entry.name) +
                    ": it has no checksum, though others in this file have; a program that changes "
                    "the file must leave out the metadata \"" +
                    std::string(kChecksumKey) + "...\"");
  }
  if (checksums.size() == header.entries.size()) return checksums;
  return DataLoss("the metadata has " + std::to_string(checksums.size()) + " checksums for " +
                  std::to_string(header.entries.size()) + " tensors");
}

}  // namespace

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(auto mapped, MappedFile::Open(path));
  const auto bytes = mapped->bytes();
  const auto text = HeaderText(bytes);
  if (!text.ok()) return text.status().Annotate(path.string());
  auto header = ParseSafetensorsHeader(*text);
  if (!header.ok()) return header.status().Annotate(path.string());
  const auto data = bytes.subspan(8 + text->size());
  const Status coverage = CheckCoverage(header->entries, data.size());
  if (!coverage.ok()) return coverage.Annotate(path.string());

  auto checksums = TakeChecksums(*header);
  if (!checksums.ok()) return checksums.status().Annotate(path.string());

  std::map<std::string, Tensor> tensors;
  for (SafetensorsEntry& entry : header->entries) {
    // The mapping is read-only; Tensor has one pointer type, and nothing writes through this one.
    auto* begin = const_cast<std::byte*>(data.data() + entry.begin);
    tensors.emplace(std::move(entry.name), Tensor{begin, entry.dtype, entry.shape, Device{}});
  }
  return std::shared_ptr<const SafetensorsFile>(
      new SafetensorsFile(TensorFile(std::move(mapped), std::move(tensors), *std::move(checksums)),
                          std::move(header->metadata)));
}

}  // namespace tandem
