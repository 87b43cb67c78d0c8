#include "tensor/tensor_file.h"

#include "base/checksum.h"
#include "tensor/safetensors.h"
#include "tensor/torch_file.h"

namespace tandem {
namespace {

bool IsSafetensorsName(const std::filesystem::path& path) {
  return path.extension() == ".safetensors";
}

}  // namespace

bool TensorFile::has_checksums() const {
  return !tensors_.empty() && checksums_.size() == tensors_.size();
}

Status TensorFile::Verify(const std::string& name) const {
  const auto checksum = checksums_.find(name);
  if (checksum == checksums_.end()) return {};
  const Tensor& tensor = tensors_.at(name);
  const std::span bytes(static_cast<const std::byte*>(tensor.data),
                        static_cast<size_t>(tensor.NumBytes()));
  if (Checksum(bytes) == checksum->second) return {};
  return DataLoss(path().string() + ": " + QuotedTensorName(name) +
                  " is damaged: its checksum differs");
}

bool IsTensorFileName(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  return IsSafetensorsName(path) || extension == ".bin" || extension == ".pt" ||
         extension == ".pth";
}

Result<std::shared_ptr<const TensorFile>> OpenTensorFile(const std::filesystem::path& path) {
  if (!IsSafetensorsName(path)) return OpenTorchFile(path);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const TensorFile> file, SafetensorsFile::Open(path));
  return file;
}

std::string QuotedTensorName(std::string_view name) {
  constexpr size_t kMaxShown = 120;
  std::string quoted = "tensor \"";
  for (const char c : name.substr(0, kMaxShown)) {
    const bool printable = static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '"';
    quoted += printable ? c : '?';
  }
  if (name.size() > kMaxShown) quoted += "...";
  return quoted + "\"";
}

}  // namespace tandem
