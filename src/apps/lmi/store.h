// Which models an LMI container serves: those that SERVING_LOAD_MODELS and HF_MODEL_ID name, and
// those of the folder that SageMaker unpacks a model's archive into. The functions read folders and
// have no other effect; main thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "apps/lmi/config.h"
#include "base/status.h"

namespace tandem::apps {

struct LmiModelPlace {
  std::string name;
  std::string url;  // a folder, an archive or an address; empty: `keys` alone name the model
  std::string engine = {};  // as SERVING_LOAD_MODELS has it
  std::string devices = {};
  LmiGivenKeys keys = {};  // of a model that the environment alone describes
};

// One entry of SERVING_LOAD_MODELS: [name[:version[:engine[:devices]]]=]url. Without a name it is
// that of the url's last part.
Result<LmiModelPlace> ParseLmiModel(std::string_view entry);

// An address without its "file:"; a relative path that is only in the store becomes that one.
std::string LocateLmiModel(std::string url, const std::filesystem::path& store);

// The folder whose name makes plain `tandem serve` a container's server.
std::filesystem::path LmiStore(const Environment& environment);
// Whether `folder` holds a serving.properties, or folders below it do and it is no model itself.
bool IsLmiFolder(const std::filesystem::path& folder);
// Whether the environment or the store says that this is such a container.
bool IsLmiEnvironment(const Environment& environment);

// The models of a store: each entry if all of them are folders or archives, else the store itself.
// A folder that holds one folder and nothing else stands for that one. Names that begin with a dot
// are passed over.
Result<std::vector<LmiModelPlace>> ListLmiStore(const std::filesystem::path& store);

// LoneFolder of it, or the archive that is alone in that.
Result<std::filesystem::path> DescendLmiFolder(std::filesystem::path folder);

// All of them. INVALID_ARGUMENT when two have one name, NOT_FOUND with what was looked for when
// there is none.
Result<std::vector<LmiModelPlace>> FindLmiModels(const Environment& environment,
                                                 const LmiSettings& server,
                                                 const std::filesystem::path& store);

}  // namespace tandem::apps
