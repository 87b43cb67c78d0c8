// Fuzz target: any bytes as a file of torch.save, and as the pickle in one. What is accepted has
// tensors whose bytes are all in the file, and inside their storages.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "tensor/torch_file.h"
#include "tensor/torch_pickle.h"

namespace {

void ReadFile(std::span<const std::byte> file) {
  const auto tensors = tandem::ReadTorchFile(file);
  if (!tensors.ok()) {
    TANDEM_CHECK(!tensors.status().message().empty(), "an error without a message");
    return;
  }
  for (const auto& [name, tensor] : *tensors) {
    const auto begin = static_cast<size_t>(static_cast<std::byte*>(tensor.data) - file.data());
    const auto bytes = static_cast<size_t>(tensor.NumBytes());
    TANDEM_CHECK(begin <= file.size() && bytes <= file.size() - begin, "bytes outside the file");
  }
}

void ReadPickle(std::string_view pickle) {
  const auto tensors = tandem::ReadTorchPickle(pickle);
  if (!tensors.ok()) {
    TANDEM_CHECK(!tensors.status().message().empty(), "an error without a message");
    return;
  }
  for (const tandem::PickledTensor& tensor : *tensors) {
    const tandem::Tensor view{nullptr, tensor.dtype, tensor.shape, {}};
    const auto bytes = static_cast<uint64_t>(view.NumBytes());
    TANDEM_CHECK(
        tensor.begin <= tensor.storage_bytes && bytes <= tensor.storage_bytes - tensor.begin,
        "bytes outside the storage");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ReadFile(std::as_bytes(std::span(data, size)));
  ReadPickle({reinterpret_cast<const char*>(data), size});
  return 0;
}
