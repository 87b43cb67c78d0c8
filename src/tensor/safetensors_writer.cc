#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/little_endian.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_header.h"

namespace tandem {
namespace {

// Data sections start on a multiple of this, so that mapped tensors are aligned for any element
// type.
constexpr size_t kHeaderAlignment = 8;

Result<std::string> HeaderJson(const std::vector<TensorInfo>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const TensorInfo& info : tensors) {
    if (!names.insert(info.name).second) {
      return InvalidArgument(QuotedTensorName(info.name) + ": it is listed twice");
    }
    auto shape = nlohmann::ordered_json::array();
    for (int i = 0; i < info.shape.rank(); ++i) shape.push_back(info.shape[i]);
    const int64_t end =
        offset + info.shape.NumElements() * static_cast<int64_t>(SizeOf(info.dtype));
    header[info.name] = {{"dtype", SafetensorsName(info.dtype)},
                         {"shape", std::move(shape)},
                         {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

std::string ChecksumKey(const TensorInfo& info) { return std::string(kChecksumKey) + info.name; }

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::filesystem::path& path, std::vector<TensorInfo> tensors,
    const std::map<std::string, std::string>& metadata) {
  // Of the length that the header will have.
  std::map<std::string, std::string> all = metadata;
  for (const TensorInfo& info : tensors) all[ChecksumKey(info)] = std::string(kChecksumDigits, '0');
  TANDEM_ASSIGN_OR_RETURN(const std::string header, HeaderJson(tensors, all));
  TANDEM_ASSIGN_OR_RETURN(auto file, AtomicFileWriter::Create(path));
  TANDEM_RETURN_IF_ERROR(file->Append(LittleEndian64(header.size())));
  TANDEM_RETURN_IF_ERROR(file->Append(header));
  return std::unique_ptr<SafetensorsWriter>(
      new SafetensorsWriter(std::move(file), std::move(tensors), std::move(all)));
}

Status SafetensorsWriter::Append(const Tensor& tensor) {
  TANDEM_CHECK(next_ < tensors_.size(), "more tensors than the header names");
  const TensorInfo& info = tensors_[next_++];
  TANDEM_CHECK(tensor.dtype == info.dtype && tensor.shape == info.shape, info.name);
  const std::span bytes(static_cast<const std::byte*>(tensor.data),
                        static_cast<size_t>(tensor.NumBytes()));
  metadata_[ChecksumKey(info)] = Checksum(bytes);
  return file_->Append(bytes);
}

Status SafetensorsWriter::Commit() {
  TANDEM_CHECK(next_ == tensors_.size(), "fewer tensors than the header names");
  TANDEM_ASSIGN_OR_RETURN(const std::string header, HeaderJson(tensors_, metadata_));
  TANDEM_RETURN_IF_ERROR(file_->Overwrite(sizeof(uint64_t), header));
  return file_->Commit();
}

Status WriteSafetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<TensorInfo> infos;
  infos.reserve(tensors.size());
  for (const NamedTensor& named : tensors) {
    infos.push_back({named.name, named.tensor.dtype, named.tensor.shape});
  }
  TANDEM_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::Create(path, std::move(infos), metadata));
  for (const NamedTensor& named : tensors) TANDEM_RETURN_IF_ERROR(writer->Append(named.tensor));
  return writer->Commit();
}

}  // namespace tandem
