#include "tensor/torch_file.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "tensor/torch_pickle.h"
#include "tensor/zip_directory.h"

namespace tandem {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kPickle = "data.pkl";

std::string_view AsText(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The folder in the archive that holds everything, "pytorch_model/".
Result<std::string> FindFolder(const ZipDirectory& files) {
  std::string folder;
  for (const auto& [name, file] : files) {
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos || name.substr(slash + 1) != kPickle) continue;
    if (!folder.empty()) return DataLoss("the ZIP archive holds more than one data.pkl");
    folder = name.substr(0, slash + 1);
  }
  if (folder.empty()) {
    return Unimplemented(
        "the ZIP archive holds no data.pkl; torch.save(model.state_dict(), PATH) "
        "writes what is read");
  }
  return folder;
}

Status CheckByteOrder(const ZipDirectory& files, const std::string& folder) {
  const auto found = files.find(folder + "byteorder");
  if (found == files.end()) return {};
  const std::string_view order = AsText(found->second.bytes);
  if (order == "little") return {};
  return Unimplemented("its byteorder is \"" + Printable(order.substr(0, 16)) +
                       "\"; only little-endian files are read");
}

// Damage in the pickle could otherwise pass for other names or offsets. The checksum is 0 where
// torch was told to write none; the storages are not read here.
Result<std::vector<PickledTensor>> ReadPickle(const ZippedFile& file) {
  if (file.crc32 != 0 && Crc32(file.bytes) != file.crc32) {
    return DataLoss("damaged: its checksum is wrong");
  }
  return ReadTorchPickle(AsText(file.bytes));
}

Result<Tensor> View(const PickledTensor& tensor, const ZipDirectory& files,
                    const std::string& folder) {
  const auto found = files.find(folder + "data/" + std::string(tensor.storage));
  if (found == files.end()) {
    return DataLoss("its storage data/" + Printable(tensor.storage.substr(0, 32)) +
                    " is not in the archive");
  }
  const Bytes storage = found->second.bytes;
  if (storage.size() != tensor.storage_bytes) {
    return DataLoss("its storage has " + std::to_string(storage.size()) + " bytes, data.pkl says " +
                    std::to_string(tensor.storage_bytes));
  }
  // The file is read-only; Tensor has one pointer type, and nothing writes through this one.
  auto* begin = const_cast<std::byte*>(storage.data() + tensor.begin);
  return Tensor{begin, tensor.dtype, tensor.shape, Device{}};
}

}  // namespace

Result<std::map<std::string, Tensor>> ReadTorchFile(Bytes file) {
  if (!file.empty() && file.front() == std::byte{0x80}) {
    return Unimplemented(
        "this is torch's format from before version 1.6, a bare pickle; load it with torch and "
        "save it again, or save the model as safetensors");
  }
  TANDEM_ASSIGN_OR_RETURN(const ZipDirectory files, ReadZipDirectory(file));
  TANDEM_ASSIGN_OR_RETURN(const std::string folder, FindFolder(files));
  TANDEM_RETURN_IF_ERROR(CheckByteOrder(files, folder));
  const auto pickled = ReadPickle(files.at(folder + std::string(kPickle)));
  if (!pickled.ok()) return pickled.status().Annotate(kPickle);
  std::map<std::string, Tensor> tensors;
  for (const PickledTensor& tensor : *pickled) {
    const auto view = View(tensor, files, folder);
    if (!view.ok()) return view.status().Annotate(QuotedTensorName(tensor.name));
    tensors.emplace(tensor.name, *view);
  }
  return tensors;
}

Result<std::shared_ptr<const TensorFile>> OpenTorchFile(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(auto mapped, MappedFile::Open(path));
  auto tensors = ReadTorchFile(mapped->bytes());
  if (!tensors.ok()) return tensors.status().Annotate(path.string());
  return std::make_shared<const TensorFile>(std::move(mapped), *std::move(tensors));
}

}  // namespace tandem
