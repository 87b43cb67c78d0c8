// ModelLoader: loads and unloads models of djl-serving's management routes by their address.
// Whoever starts the server implements it (serve knows no files); it outlives the server. Load and
// Unload come one at a time, on the thread of kserve::Repository's control.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/lmi/settings.h"

namespace tandem::serve::lmi {

struct LoadRequest {
  std::string name;  // under which it is served; [A-Za-z0-9._-], not empty
  std::string url;   // a folder or archive, "file:" before it or not, a hub's model, s3://…
};

// Where a served model came from.
struct ModelOrigin {
  std::string url;                             // as it was given; empty if that is not known
  bool by_request = false;                     // Load brought it
  std::optional<ModelSettings> settings = {};  // of its own
};

class ModelLoader {
 public:
  virtual ~ModelLoader() = default;
  // Loads a model and adds it to the registry and the repository under `name`. Any code with
  // Reason::kAlreadyExists, and nothing changes, where the name is taken in either;
  // RESOURCE_EXHAUSTED where memory or the disk is short, NOT_FOUND where there is nothing at the
  // url.
  virtual Status Load(const LoadRequest& request) = 0;
  // Unloads what Load or the start has loaded. NOT_FOUND without such a model.
  virtual Status Unload(std::string_view name) = 0;
  // Any thread.
  virtual ModelOrigin OriginOf(std::string_view name) const = 0;
};

}  // namespace tandem::serve::lmi
