#include "sources/s3.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/printable.h"
#include "sources/archive.h"
#include "sources/download.h"
#include "sources/model_files.h"
#include "sources/s3_client.h"
#include "sources/source_cache.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNameDigits = 32;  // of folders in the cache
constexpr int kPreconditionFailed = 412;

// "README.md, model.py and 3 more"
std::string Some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  const size_t shown = std::min(names.size(), kShown);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return Printable(text);
}

class S3Model {
 public:
  S3Model(std::string_view text, S3Address address, const SourceOptions& options)
      : options_(options),
        text_(text),
        address_(std::move(address)),
        client_(address_.bucket, options),
        folder_((options.cache_dir.empty() ? options.own_cache : options.cache_dir) / "download" /
                Sha256Hex(options.s3.endpoint + " " + std::string(text)).substr(0, kNameDigits)) {}

  Result<fs::path> Fetch() {
    if (options_.offline) return FromCache();
    Result<fs::path> fetched = IsArchiveName(address_.key) ? FetchArchive() : FetchFolder();
    if (fetched.status().code() == Code::kUnavailable && !is_transferring_) {
      if (Result<fs::path> cached = FromCache(); cached.ok()) {
        LogWarning("{}; {} is taken from the cache as it is", fetched.status().message(), text_);
        return cached;
      }
    }
    return fetched.ok() ? fetched : fetched.status().Annotate(text_);
  }

 private:
  Result<fs::path> FromCache() const {
    std::error_code ignored;
    if (const auto version = ReadTextFile(folder_ / "latest", kNameDigits);
        version.ok() && IsSafeRelativePath(*version)) {
      if (fs::is_directory(folder_ / *version, ignored)) return folder_ / *version;
    }
    return NotFound(
        fmt::format("{}: is not in the cache {}, and without --offline and HF_HUB_OFFLINE it would "
                    "be downloaded",
                    text_, folder_.string()));
  }

  // Keeps in mind what a later start without S3 takes.
  Result<fs::path> Latest(const std::string& version) const {
    const fs::path file = folder_ / "latest";
    if (const auto now = ReadTextFile(file); !now.ok() || *now != version) {
      TANDEM_RETURN_IF_ERROR(WriteFileAtomically(file, version));
    }
    return folder_ / version;
  }

  Result<RemoteFile> FileOf(const S3Object& object, const fs::path& destination) {
    TANDEM_ASSIGN_OR_RETURN(const HttpResponse head, client_.Head(object.key));
    return RemoteFile{
        .name = object.key,
        .destination = destination,
        .bytes = object.bytes,
        .digest = DigestOfS3Object(head),
        .identity = object.etag,
        .request = [this, object] { return client_.RequestFor(object.key, object.etag); }};
  }

  Status Download(std::span<const RemoteFile> files) {
    is_transferring_ = true;
    return DownloadFiles(
        text_, files,
        [this](const HttpResponse& response) {
          if (response.status == kPreconditionFailed) has_changed_ = true;
          return client_.Explain(response);
        },
        options_);
  }

  // Removes what downloads of other versions left, which nobody can complete. With the lock.
  void RemoveUnfinished(const std::string& except) const {
    std::error_code error;
    std::vector<fs::path> left;
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      const bool is_unfinished = name.find(".unfinished") != std::string::npos ||
                                 name.find(".archive") != std::string::npos;
      if (is_unfinished && !name.starts_with(except + ".")) left.push_back(entry->path());
    }
    for (const fs::path& path : left) fs::remove_all(path, error);
  }

  Result<fs::path> FetchArchive() {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<S3Object> listed, client_.List(address_.key));
    const auto object = std::ranges::find(listed, address_.key, &S3Object::key);
    if (object == listed.end()) return NotFound("there is no such object");
    const std::string version = Sha256Hex(object->etag).substr(0, kNameDigits);
    const fs::path target = folder_ / version;
    if (NameExists(target)) return Latest(version);
    TANDEM_ASSIGN_OR_RETURN(const auto lock, WaitForLock(folder_ / "lock", text_, options_.check));
    if (!NameExists(target)) {
      RemoveUnfinished(/*except=*/version);
      const fs::path archive = folder_ / (version + ".archive");
      if (!NameExists(archive)) {
        TANDEM_ASSIGN_OR_RETURN(const RemoteFile file, FileOf(*object, archive));
        const Status downloaded = Download({&file, 1});
        if (has_changed_) RemoveUnfinished(/*except=*/"");
        TANDEM_RETURN_IF_ERROR(downloaded);
      }
      const Status unpacked = Unpack(archive, target, UnpackLimitsOf(options_));
      const bool is_bad = unpacked.code() == Code::kDataLoss;
      std::error_code ignored;
      if (unpacked.ok() || is_bad) fs::remove(archive, ignored);
      TANDEM_RETURN_IF_ERROR(unpacked);
    }
    return Latest(version);
  }

  // The objects below the address that an engine may read, their keys cut to paths in the folder.
  Result<std::vector<S3Object>> ListFolder(std::string& version) {
    std::string prefix = address_.key;
    if (!prefix.empty() && !prefix.ends_with('/')) prefix += '/';
    TANDEM_ASSIGN_OR_RETURN(std::vector<S3Object> objects, client_.List(prefix));
    std::vector<std::string> code;
    std::vector<std::string> unread;
    std::string all;
    std::erase_if(objects, [&](const S3Object& object) {
      const std::string name = object.key.substr(prefix.size());
      if (name.empty() || name.ends_with('/')) return true;  // a folder, as consoles make them
      if (IsCode(name)) code.push_back(name);
      if (IsUnread(name)) unread.push_back(name);
      return IsUnread(name);
    });
    if (objects.empty()) {
      return NotFound(unread.empty() ? "there is nothing below this address"
                                     : "there is no model below this address; what is there is "
                                       "not read: " +
                                           Some(unread));
    }
    LeaveSecondWeights(prefix.size(), objects);
    NameCode(text_, code);
    for (const S3Object& object : objects) {
      if (!IsSafeRelativePath(object.key.substr(prefix.size()))) {
        return DataLoss("an object's name is no path inside a folder: " + object.key);
      }
      all +=
          fmt::format("{}\n{}\n{}\n", object.key.substr(prefix.size()), object.etag, object.bytes);
    }
    prefix_size_ = prefix.size();
    version = Sha256Hex(all).substr(0, kNameDigits);
    return objects;
  }

  // A folder with safetensors is read by these.
  static void LeaveSecondWeights(size_t prefix, std::vector<S3Object>& objects) {
    const auto has = [&](std::string_view name) {
      return std::ranges::any_of(
          objects, [&](const S3Object& object) { return object.key.substr(prefix) == name; });
    };
    if (!has("model.safetensors") && !has("model.safetensors.index.json")) return;
    std::erase_if(objects, [&](const S3Object& object) {
      const std::string name = object.key.substr(prefix);
      return (name.starts_with("pytorch_model") && name.find(".bin") != std::string::npos) ||
             (name.starts_with("consolidated") && name.find('/') == std::string::npos);
    });
  }

  Result<fs::path> FetchFolder() {
    std::string version;
    TANDEM_ASSIGN_OR_RETURN(const std::vector<S3Object> objects, ListFolder(version));
    const fs::path target = folder_ / version;
    if (NameExists(target)) return Latest(version);
    TANDEM_ASSIGN_OR_RETURN(const auto lock, WaitForLock(folder_ / "lock", text_, options_.check));
    if (NameExists(target)) return Latest(version);
    RemoveUnfinished(/*except=*/version);
    const fs::path unfinished = folder_ / (version + ".unfinished");
    std::vector<RemoteFile> files;
    for (const S3Object& object : objects) {
      const fs::path destination = unfinished / object.key.substr(prefix_size_);
      if (NameExists(destination)) continue;  // complete: it has its name
      TANDEM_RETURN_IF_ERROR(MakeFolders(destination.parent_path()));
      TANDEM_ASSIGN_OR_RETURN(RemoteFile file, FileOf(object, destination));
      files.push_back(std::move(file));
    }
    const Status downloaded = Download(files);
    if (has_changed_) RemoveUnfinished(/*except=*/"");
    TANDEM_RETURN_IF_ERROR(downloaded);
    std::error_code error;
    fs::rename(unfinished, target, error);
    if (error) return FailedPrecondition(target.string() + ": cannot be made: " + error.message());
    return Latest(version);
  }

  const SourceOptions& options_;
  const std::string text_;
  const S3Address address_;
  S3Client client_;
  const fs::path folder_;
  size_t prefix_size_ = 0;                // of the keys of a folder, set by ListFolder
  bool is_transferring_ = false;          // S3 was reached
  std::atomic<bool> has_changed_{false};  // an object, since it was listed
};

}  // namespace

Result<fs::path> FetchFromS3(std::string_view address, const SourceOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(S3Address read, ReadS3Address(address));
  return S3Model(address, std::move(read), options).Fetch();
}

}  // namespace tandem
