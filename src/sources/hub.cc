#include "sources/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "sources/download.h"
#include "sources/hub_listing.h"
#include "sources/model_files.h"
#include "sources/source_cache.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// models--OWNER--MODEL
std::string CacheName(std::string_view id) {
  std::string name = "models--";
  for (const char c : id) name += c == '/' ? std::string("--") : std::string(1, c);
  return name;
}

Status CheckRevision(std::string_view revision) {
  if (IsSafeRelativePath(revision)) return {};
  return FieldError("revision", "is no branch, tag or commit of a hub's model");
}

class HubModel {
 public:
  HubModel(std::string_view id, const SourceOptions& options)
      : options_(options),
        id_(id),
        revision_(options.revision.empty() ? "main" : options.revision),
        cache_(options.cache_dir.empty() ? options.hub.cache : options.cache_dir),
        root_(cache_ / CacheName(id)),
        session_(options.certificates) {}

  Result<fs::path> Fetch() {
    TANDEM_RETURN_IF_ERROR(CheckRevision(revision_));
    if (options_.offline) return FromCache();
    // A commit never changes. Of a snapshot that an earlier download left, or another program, it
    // is not known here whether all of it is there.
    if (IsCommit(revision_) && NameExists(ListOf(revision_))) {
      if (Result<fs::path> cached = FromCache(); cached.ok()) return cached;
    }
    // What may be used as it is need not be waited for.
    Result<HubListing> listing = List(/*patiently=*/!FromCache().ok());
    if (listing.status().code() == Code::kUnavailable) {
      if (Result<fs::path> cached = FromCache(); cached.ok()) {
        LogWarning("{}; {} is taken from the cache as it is", listing.status().message(), id_);
        return cached;
      }
      return Unavailable(
          fmt::format("there is no folder {}, and the hub cannot be asked for it: {}", id_,
                      listing.status().message()));
    }
    TANDEM_RETURN_IF_ERROR(listing.status());
    return FetchFiles(*listing);
  }

 private:
  fs::path SnapshotOf(const std::string& commit) const { return root_ / "snapshots" / commit; }

  // The names of the files of a snapshot, one a line: written when a download of it has ended.
  fs::path ListOf(const std::string& commit) const { return root_ / ".tandem" / commit; }

  // A file of the list that is not there; empty: none, or there is no list.
  std::string MissingListed(const std::string& commit) const {
    const Result<std::string> list = ReadTextFile(ListOf(commit));
    for (size_t begin = 0; list.ok() && begin < list->size();) {
      const size_t end = std::min(list->find('\n', begin), list->size());
      const std::string name = list->substr(begin, end - begin);
      std::error_code ignored;
      if (!fs::exists(SnapshotOf(commit) / name, ignored)) return name;
      begin = end + 1;
    }
    return {};
  }

  HttpRequest RequestFor(std::string url) const {
    HttpRequest request{.url = std::move(url), .stall = options_.stall};
    if (!options_.hub.token.empty()) {
      request.secrets.push_back("Authorization: Bearer " + options_.hub.token);
    }
    return request;
  }

  std::string UrlOf(const std::string& commit, const std::string& file) const {
    return fmt::format("{}/{}/resolve/{}/{}", options_.hub.endpoint, id_, commit,
                       UrlEncode(file, "/"));
  }

  Status Explain(const HttpResponse& response) const {
    return ExplainHubStatus({.id = id_,
                             .revision = revision_,
                             .endpoint = options_.hub.endpoint,
                             .with_token = !options_.hub.token.empty()},
                            response);
  }

  Result<fs::path> FromCache() const {
    std::string commit = revision_;
    if (!IsCommit(commit)) {
      if (const auto ref = ReadTextFile(root_ / "refs" / revision_); ref.ok()) commit = *ref;
    }
    const fs::path snapshot = SnapshotOf(commit);
    std::error_code ignored;
    const auto lacks = [&](const std::string& what) {
      return NotFound(fmt::format(
          "{} (revision {}): {} is not in the cache {}, and without --offline and HF_HUB_OFFLINE "
          "it would be downloaded",
          id_, revision_, what, cache_.string()));
    };
    if (!IsCommit(commit) || !fs::is_directory(snapshot, ignored)) return lacks("it");
    if (!fs::exists(snapshot / "config.json", ignored)) return lacks("config.json");
    if (const std::string missing = MissingListed(commit); !missing.empty()) return lacks(missing);
    if (options_.with_weights) {
      if (const std::string missing = MissingWeights(snapshot); !missing.empty()) {
        return lacks(missing);
      }
    }
    return snapshot;
  }

  Result<HubListing> List(bool patiently) {
    const HttpRequest request =
        RequestFor(fmt::format("{}/api/models/{}/revision/{}?blobs=true", options_.hub.endpoint,
                               id_, UrlEncode(revision_)));
    TANDEM_ASSIGN_OR_RETURN(const HttpResponse response,
                            patiently
                                ? SendPatiently(session_, request, options_.retry, options_.check)
                                : session_.Send(request));
    if (!response.ok()) return Explain(response);
    Result<HubListing> listing = ReadHubListing(response.body);
    return listing.ok() ? listing : listing.status().Annotate(options_.hub.endpoint);
  }

  Result<fs::path> FetchFiles(const HubListing& listing) {
    std::vector<std::string> names;
    for (const HubFile& file : listing.files) names.push_back(file.name);
    ModelFiles chosen = ChooseModelFiles(names);
    if (!options_.with_weights) {
      chosen.weights.clear();
      chosen.index.clear();
    }
    NameCode(id_, chosen.left_alone);
    TANDEM_RETURN_IF_ERROR(CheckReadable(names, chosen));
    if (!chosen.index.empty()) chosen.settings.push_back(chosen.index);
    const fs::path snapshot = SnapshotOf(listing.commit);
    std::unique_ptr<FileLock> lock;
    TANDEM_RETURN_IF_ERROR(FetchMissing(listing, chosen.settings, snapshot, lock));
    if (!chosen.index.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(snapshot / chosen.index));
      auto shards = ShardsOf(text);
      if (!shards.ok()) return shards.status().Annotate(id_ + ": " + chosen.index);
      chosen.weights = *std::move(shards);
    }
    TANDEM_RETURN_IF_ERROR(FetchMissing(listing, chosen.weights, snapshot, lock));
    if (const Status pointed = PointTo(listing.commit, chosen); !pointed.ok()) {
      LogWarning("{}; --offline will not find {}", pointed.message(), id_);  // a read-only cache
    }
    return snapshot;
  }

  Status CheckReadable(const std::vector<std::string>& names, const ModelFiles& chosen) const {
    if (std::ranges::find(names, "config.json") == names.end()) {
      return InvalidArgument(id_ + " has no config.json: it is no model that can be read here");
    }
    if (!options_.with_weights || !chosen.weights.empty() || !chosen.index.empty()) return {};
    return InvalidArgument(
        id_ + " has neither model.safetensors nor pytorch_model.bin: other formats are not read");
  }

  // Takes the lock where something is missing.
  Status FetchMissing(const HubListing& listing, const std::vector<std::string>& names,
                      const fs::path& snapshot, std::unique_ptr<FileLock>& lock) {
    std::error_code ignored;
    const auto is_missing = [&](const std::string& name) {
      return !fs::exists(snapshot / name, ignored);
    };
    if (std::ranges::none_of(names, is_missing)) return {};
    if (lock == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(
          lock,
          WaitForLock(cache_ / ".locks" / root_.filename() / "tandem.lock", id_, options_.check));
    }
    TANDEM_RETURN_IF_ERROR(MakeFolders(root_ / "blobs"));
    std::vector<HubFile> missing;
    std::vector<RemoteFile> downloads;
    for (const std::string& name : names) {
      if (!is_missing(name)) continue;
      const auto listed = std::ranges::find(listing.files, name, &HubFile::name);
      if (listed == listing.files.end()) {
        return NotFound(
            fmt::format("{}: the index names {}, which the hub does not have", id_, name));
      }
      HubFile file = *listed;
      TANDEM_RETURN_IF_ERROR(Complete(listing.commit, file));
      const fs::path blob = root_ / "blobs" / file.etag;
      const bool is_wanted = std::ranges::find(downloads, blob, &RemoteFile::destination) !=
                             downloads.end();  // two names of the same bytes
      if (!is_wanted && !fs::exists(blob, ignored)) {
        downloads.push_back(DownloadOf(listing.commit, file, blob));
      }
      missing.push_back(std::move(file));
    }
    TANDEM_RETURN_IF_ERROR(DownloadFiles(
        id_, downloads, [this](const HttpResponse& response) { return Explain(response); },
        options_));
    for (const HubFile& file : missing) TANDEM_RETURN_IF_ERROR(Link(snapshot, file));
    return {};
  }

  RemoteFile DownloadOf(const std::string& commit, const HubFile& file,
                        const fs::path& blob) const {
    const std::string url = UrlOf(commit, file.name);
    return {.name = file.name,
            .destination = blob,
            .bytes = file.bytes,
            .digest = DigestOfEtag(file.etag),
            .identity = file.etag,
            .request = [this, url]() -> Result<HttpRequest> { return RequestFor(url); }};
  }

  // Asks for what the listing does not tell.
  Status Complete(const std::string& commit, HubFile& file) {
    HttpRequest request = RequestFor(UrlOf(commit, file.name));
    request.method = "HEAD";
    request.follow_redirects = false;
    constexpr int kMaxRedirects = 5;
    for (int i = 0; i < kMaxRedirects && (file.etag.empty() || file.bytes < 0); ++i) {
      TANDEM_ASSIGN_OR_RETURN(const HttpResponse response,
                              SendPatiently(session_, request, options_.retry, options_.check));
      if (response.status >= 400) return Explain(response).Annotate(file.name);
      TakeFileHeaders(response, file);
      const std::string_view location = response.Header("location");
      if (!location.starts_with('/')) break;  // on the same host: the model has another name now
      const std::string& endpoint = options_.hub.endpoint;
      const size_t host = endpoint.find("://") + 3;
      request.url = endpoint.substr(0, endpoint.find('/', host)) + std::string(location);
    }
    if (!file.etag.empty() && file.bytes >= 0) return {};
    return DataLoss(file.name + ": the hub tells neither its size nor its checksum");
  }

  // The file's name in the snapshot leads to its blob.
  Status Link(const fs::path& snapshot, const HubFile& file) const {
    const fs::path link = snapshot / file.name;
    const fs::path blob = root_ / "blobs" / file.etag;
    TANDEM_RETURN_IF_ERROR(MakeFolders(link.parent_path()));
    std::error_code error;
    if (NameExists(link) && !fs::exists(link, error)) fs::remove(link, error);  // led nowhere
    fs::create_symlink(fs::relative(blob, link.parent_path(), error), link, error);
    if (error && !fs::exists(link)) {
      fs::create_hard_link(blob, link, error);  // where there are no symbolic links
      if (error) return FailedPrecondition(link.string() + ": cannot be made: " + error.message());
    }
    return {};
  }

  // After a download: what a later start takes without the hub.
  Status PointTo(const std::string& commit, const ModelFiles& files) const {
    std::string list;
    for (const std::string& name : files.settings) list += name + "\n";
    for (const std::string& name : files.weights) list += name + "\n";
    TANDEM_RETURN_IF_ERROR(Keep(ListOf(commit), list));
    return revision_ == commit ? Status() : Keep(root_ / "refs" / revision_, commit);
  }

  static Status Keep(const fs::path& file, const std::string& text) {
    if (const auto now = ReadTextFile(file); now.ok() && *now == text) return {};
    TANDEM_RETURN_IF_ERROR(MakeFolders(file.parent_path()));
    return WriteFileAtomically(file, text);
  }

  const SourceOptions& options_;
  const std::string id_;
  const std::string revision_;
  const fs::path cache_;
  const fs::path root_;
  HttpSession session_;
};

bool IsNamePart(std::string_view part) {
  constexpr size_t kLongest = 96;
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !part.empty() && part.size() <= kLongest && std::ranges::all_of(part, allowed) &&
         part.front() != '-' && part.front() != '.' && part.back() != '-' && part.back() != '.' &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos;
}

}  // namespace

bool IsHubId(std::string_view id) {
  const size_t slash = id.find('/');
  if (slash == std::string_view::npos) return IsNamePart(id);
  return IsNamePart(id.substr(0, slash)) && IsNamePart(id.substr(slash + 1));
}

Result<fs::path> FetchFromHub(std::string_view id, const SourceOptions& options) {
  return HubModel(id, options).Fetch();
}

}  // namespace tandem
