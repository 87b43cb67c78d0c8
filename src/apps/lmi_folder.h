// Where in a folder the model is that can be served. What LMI's users have is a Hugging Face model,
// or a repository of TensorRT engines with a model's small files beside them, of which one folder
// level more or less made that server fail. The function reads folders; main thread.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace tandem::apps {

struct LmiFolder {
  std::filesystem::path path;       // for OpenModel
  std::filesystem::path tokenizer;  // where it is elsewhere; else empty
  std::string note;                 // what to tell about the place; empty: it is where it belongs
};

// The folder itself, or the first one below it, at most two levels down, with weights that can be
// read. Engines of TensorRT are opaque: the weights beside them are taken. NOT_FOUND lists the
// folders that were looked into, and says what engines need.
Result<LmiFolder> FindServableFolder(const std::filesystem::path& folder);

}  // namespace tandem::apps
