// A Hugging Face folder as torch would have saved it, for tests. Pure functions over files.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/testing/hf_folder.h"
#include "tensor/safetensors.h"
#include "tensor/testing/torch_archive.h"

namespace tandem {

// Replaces each safetensors file of bf16 weights by one of torch, and the index too.
inline void SaveWithTorch(const std::filesystem::path& folder) {
  const auto replaced = [](std::string text) {
    for (const auto& [from, to] :
         {std::pair{"model-", "pytorch_model-"}, {".safetensors", ".bin"}}) {
      for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
           at += std::string_view(to).size()) {
        text.replace(at, std::string_view(from).size(), to);
      }
    }
    return text;
  };
  const std::vector<std::filesystem::directory_entry> entries{
      std::filesystem::directory_iterator(folder), {}};
  for (const std::filesystem::directory_entry& entry : entries) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".index.json")) {
      WriteText(folder / "pytorch_model.bin.index.json", replaced(*ReadTextFile(entry.path())));
    } else if (name.ends_with(".safetensors")) {
      const auto file = SafetensorsFile::Open(entry.path()).value();
      std::vector<std::pair<std::string, std::string>> items;
      std::vector<std::pair<std::string, std::string>> storages;
      for (const auto& [key, tensor] : file->tensors()) {
        const std::string storage = std::to_string(storages.size());
        std::vector<int64_t> shape;
        std::vector<int64_t> strides(static_cast<size_t>(tensor.shape.rank()), 1);
        for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.dim(i));
        for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
        items.emplace_back(
            key, pickle::Tensor(
                     {.type = "BFloat16Storage", .name = storage, .count = tensor.NumElements()},
                     shape, strides));
        storages.emplace_back(storage, std::string(static_cast<const char*>(tensor.data),
                                                   static_cast<size_t>(tensor.NumBytes())));
      }
      WriteText(folder / (name == "model.safetensors" ? "pytorch_model.bin" : replaced(name)),
                pickle::Archive(pickle::Dict(items), storages));
    } else {
      continue;
    }
    std::filesystem::remove(entry.path());
  }
}

}  // namespace tandem
