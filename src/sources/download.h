// DownloadFiles: fetches files in parallel parts, each checked and given its name when it is
// complete. What an earlier call left unfinished goes on. Called from one thread; runs its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "sources/digest.h"
#include "sources/http.h"
#include "sources/model_source.h"

namespace tandem {

struct RemoteFile {
  std::string name;                   // for people
  std::filesystem::path destination;  // its folder exists
  int64_t bytes = 0;
  std::optional<ExpectedDigest> digest;
  std::string identity;  // of this version of the file; two versions never mix
  // The request for the whole file, made anew for each attempt; called from several threads.
  std::function<Result<HttpRequest>()> request;
};

// Why a server refuses, as a sentence for people; called for statuses that no further attempt
// changes.
using ExplainStatus = std::function<Status(const HttpResponse& response)>;

// `what` is downloaded, for people. RESOURCE_EXHAUSTED before anything is fetched when the disk has
// no room for all of it. The first error ends all transfers.
Status DownloadFiles(std::string_view what, std::span<const RemoteFile> files,
                     const ExplainStatus& explain, const SourceOptions& options);

}  // namespace tandem
