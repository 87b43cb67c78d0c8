#include "apps/models/local_model.h"

#include <system_error>
#include <utility>

#include "apps/cli/command.h"
#include "sources/model_source.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

Result<fs::path> Local(const fs::path& named, const OptionValues& values, bool with_weights,
                       const std::function<Status()>& check) {
  const std::string& name = named.native();
  std::error_code ignored;
  if (fs::is_directory(named, ignored)) return FetchModel(name, {});
  const bool is_archive = IsArchiveName(name);
  const bool is_remote = IsRemoteSource(name);
  if (!is_remote && !(is_archive && fs::exists(named, ignored))) return named;
  const SourceChoice choice = SourceOptionRows().Read(values);
  SourceOptions options = SourceOptions::FromEnvironment();
  options.revision = choice.revision;
  options.cache_dir = choice.download_dir;
  options.offline = options.offline || choice.offline;
  options.with_weights = with_weights;
  options.check = check;
  const Console console(/*json=*/true, CommonOptionRows().Read(values).log_format);
  options.progress = [&console](std::string_view what, double done) {
    console.Progress(what, done);
  };
  TANDEM_ASSIGN_OR_RETURN(fs::path folder, FetchModel(name, options));
  return is_archive ? LoneFolder(std::move(folder)) : folder;
}

}  // namespace

fs::path LoneFolder(fs::path folder) {
  constexpr int kMaxFolders = 3;
  for (int i = 0; i < kMaxFolders; ++i) {
    std::error_code error;
    fs::path only;
    int entries = 0;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().filename().native().starts_with('.')) continue;
      only = entry->path();
      ++entries;
    }
    if (entries != 1 || !fs::is_directory(only, error)) break;
    folder = std::move(only);
  }
  return folder;
}

Result<fs::path> LocalModel(const fs::path& named, const OptionValues& values,
                            const std::function<Status()>& check) {
  return Local(named, values, /*with_weights=*/true, check);
}

Result<fs::path> LocalTokenizer(const fs::path& named, const OptionValues& values,
                                const std::function<Status()>& check) {
  return Local(named, values, /*with_weights=*/false, check);
}

}  // namespace tandem::apps
