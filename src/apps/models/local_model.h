// Models that the command line names may have to be downloaded or unpacked first (sources/). Called
// from one thread.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/bound_options.h"
#include "base/status.h"

namespace tandem::apps {

struct SourceChoice {
  std::string revision;
  std::filesystem::path download_dir;
  bool offline = false;
};

// For every verb that reads a model.
const BoundOptions<SourceChoice>& SourceOptionRows();

// What such an option accepts.
inline constexpr std::string_view kFolderToRead =
    "Hugging Face folder to read, an archive of one, OWNER/MODEL of a hub, or s3://BUCKET/PATH";

// The folder itself, or the one that it holds and nothing else, three levels down at most. Names
// that begin with a dot are passed over. As tar packs a folder by its name, a model is often one
// folder down.
std::filesystem::path LoneFolder(std::filesystem::path folder);

// The local folder of a model: what is to be downloaded or unpacked is, and the one folder that an
// archive holds is entered. Everything else is returned as it is, whether it exists or not.
// `values` are those of a verb with the rows above; `check` as SourceOptions::check. Shows
// progress.
Result<std::filesystem::path> LocalModel(const std::filesystem::path& named,
                                         const OptionValues& values,
                                         const std::function<Status()>& check = {});
// The same without the weights of a hub's model.
Result<std::filesystem::path> LocalTokenizer(const std::filesystem::path& named,
                                             const OptionValues& values,
                                             const std::function<Status()>& check = {});

}  // namespace tandem::apps
