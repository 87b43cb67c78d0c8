// The files of torch.save, piece by piece, for tests to read and to damage: the opcodes of a pickle
// as text, and the archive around it. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/little_endian.h"
#include "tensor/testing/zip_archive.h"

namespace tandem::pickle {

inline std::string Text(const std::string& text) {
  std::string bytes = "X";
  AppendLittleEndian(static_cast<uint32_t>(text.size()), bytes);
  return bytes + text;
}
inline std::string Int(int64_t value) {
  std::string bytes = "\x8a\x08";
  AppendLittleEndian(value, bytes);
  return bytes;
}
inline std::string Ints(const std::vector<int64_t>& values) {
  std::string bytes = "(";
  for (const int64_t value : values) bytes += Int(value);
  return bytes + "t";
}
inline std::string Global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string OrderedDict() { return Global("collections", "OrderedDict") + ")R"; }

struct Storage {
  std::string type = "FloatStorage";
  std::string name = "0";
  int64_t count = 0;
};
inline std::string PersistentId(const Storage& storage) {
  return "(" + Text("storage") + Global("torch", storage.type) + Text(storage.name) + Text("cpu") +
         Int(storage.count) + "tQ";
}
inline std::string Tensor(const Storage& storage, const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& strides, int64_t offset = 0) {
  return Global("torch._utils", "_rebuild_tensor_v2") + "(" + PersistentId(storage) + Int(offset) +
         Ints(shape) + Ints(strides) + "\x89" + OrderedDict() + "tR";
}

// The pickle of a dictionary: pairs of a name and the opcodes of its value.
inline std::string Dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string bytes = "\x80\x02}(";
  for (const auto& [name, value] : items) bytes += Text(name) + value;
  return bytes + "u.";
}

// The archive; the storages are pairs of a name and bytes.
inline std::string Archive(const std::string& pickle,
                           const std::vector<std::pair<std::string, std::string>>& storages,
                           const std::string& byte_order = "little") {
  std::vector<std::pair<std::string, std::string>> files = {{"m/data.pkl", pickle},
                                                            {"m/byteorder", byte_order}};
  for (const auto& [name, bytes] : storages) files.emplace_back("m/data/" + name, bytes);
  files.emplace_back("m/version", "3\n");
  return ZipArchive(files);
}

}  // namespace tandem::pickle
