// Where in a folder the model is that can be served. What LMI's users have is a Hugging Face model,
// or a repository of TensorRT engines with a model's small files beside them. The original server
// failed if they lay one folder level too deep or too high. The functions read folders; one thread.
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

bool IsFolder(const std::filesystem::path& path);

// What option.model_id names: the folder of that name beside serving.properties, in `folder`, or
// else the id itself, which may be a path, an address or a hub's model.
std::filesystem::path FolderOfId(const std::filesystem::path& folder, const std::string& id);

}  // namespace tandem::apps
