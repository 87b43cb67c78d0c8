// TensorFile: the named tensors of a memory-mapped file, whatever its format. Immutable and safe on
// any thread; the tensors are views into the mapping and live as long as the file. No alignment is
// promised: read through memcpy or ConvertElements (convert.h).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

class TensorFile {
 public:
  TensorFile(std::shared_ptr<MappedFile> file, std::map<std::string, Tensor> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return file_->path(); }

 private:
  std::shared_ptr<MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
};

// Whether the name ends like that of a file that OpenTensorFile reads.
bool IsTensorFileName(const std::filesystem::path& path);

// Opens and validates the file; the end of its name tells the format: .safetensors, or .bin, .pt
// and .pth for what torch.save writes.
Result<std::shared_ptr<const TensorFile>> OpenTensorFile(const std::filesystem::path& path);

// `tensor "model.norm.weight"` for messages: control characters are replaced, long names are cut.
std::string QuotedTensorName(std::string_view name);

}  // namespace tandem
