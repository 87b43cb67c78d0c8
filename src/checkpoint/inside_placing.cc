#include "checkpoint/inside_placing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Of a bind mount too, whose device may be that of the folder above it.
bool IsMountPoint(const fs::path& path) {
  struct statx info{};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &info) != 0) {
    return false;
  }
  if ((info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {
    return (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
  struct stat own{}, parents{};  // a kernel before 5.8
  return ::stat(path.c_str(), &own) == 0 && ::stat(path.parent_path().c_str(), &parents) == 0 &&
         own.st_dev != parents.st_dev;
}

int Rename(const fs::path& from, const fs::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int Exchange(const fs::path& a, const fs::path& b) {
  constexpr unsigned kRenameExchange = 2;
  const auto result =
      ::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), kRenameExchange);
  return result == 0 ? 0 : errno;
}

Result<std::vector<std::string>> NamesIn(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return FailedCall(folder, "cannot list", error.value());
  return names;
}

}  // namespace

NameCalls NameCalls::System() { return {IsMountPoint, Rename, Exchange}; }

Status FailedCall(const fs::path& path, std::string_view what, int error) {
  return FailedPrecondition(path.string() + ": " + std::string(what) + ": " + std::strerror(error));
}

Status SyncFolder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FailedCall(folder, "cannot open", errno);
  const int synced = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return synced == 0 ? Status() : FailedCall(folder, "cannot sync", error);
}

InsidePlacing::InsidePlacing(fs::path folder, std::function<bool(const std::string&)> is_own,
                             NameCalls calls)
    : folder_(std::move(folder)),
      is_own_(std::move(is_own)),
      calls_(std::move(calls)),
      temporary_(Name(kTemporarySuffix)),
      ready_(Name(std::string(".new") + kTemporarySuffix)),
      old_(Name(std::string(".old") + kTemporarySuffix)) {}

fs::path InsidePlacing::Name(const std::string& suffix) const {
  return folder_ / ("tandem" + suffix);
}

Status InsidePlacing::Move(const fs::path& from, const fs::path& to) const {
  const int error = calls_.rename(from, to);
  return error == 0 ? Status() : FailedCall(to, "cannot rename", error);
}

// config.json comes last: the others are there by then.
Status InsidePlacing::Complete(const fs::path& from, const fs::path& to) const {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(from));
  for (const std::string& name : names) {
    if (name != kConfigFile) TANDEM_RETURN_IF_ERROR(Move(from / name, to / name));
  }
  TANDEM_RETURN_IF_ERROR(SyncFolder(to));
  if (!NameExists(from / kConfigFile)) return {};
  TANDEM_RETURN_IF_ERROR(Move(from / kConfigFile, to / kConfigFile));
  return SyncFolder(to);
}

// config.json goes first: without it the rest is no result.
Status InsidePlacing::TakeApart(const std::vector<std::string>& names, const fs::path& to) const {
  if (std::ranges::find(names, kConfigFile) != names.end() && NameExists(folder_ / kConfigFile)) {
    TANDEM_RETURN_IF_ERROR(Move(folder_ / kConfigFile, to / kConfigFile));
    TANDEM_RETURN_IF_ERROR(SyncFolder(to));
    TANDEM_RETURN_IF_ERROR(SyncFolder(folder_));
  }
  for (const std::string& name : names) {
    if (NameExists(folder_ / name)) TANDEM_RETURN_IF_ERROR(Move(folder_ / name, to / name));
  }
  TANDEM_RETURN_IF_ERROR(SyncFolder(to));
  return SyncFolder(folder_);
}

// `names`: of the new result.
Status InsidePlacing::TakeBack(const std::vector<std::string>& names) const {
  if (NameExists(ready_)) {
    std::vector<std::string> moved;
    std::ranges::copy_if(names, std::back_inserter(moved),
                         [this](const std::string& name) { return !NameExists(ready_ / name); });
    TANDEM_RETURN_IF_ERROR(TakeApart(moved, ready_));
    TANDEM_RETURN_IF_ERROR(Move(ready_, temporary_));
  }
  TANDEM_RETURN_IF_ERROR(Complete(old_, folder_));
  std::error_code ignored;
  fs::remove(old_, ignored);
  return {};
}

Status InsidePlacing::Place() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(temporary_));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> present, NamesIn(folder_));
  std::error_code error;
  std::erase_if(present, [&](const std::string& name) {
    const bool goes = is_own_(name) || std::ranges::find(names, name) != names.end();
    return !goes || fs::is_directory(folder_ / name, error);
  });
  TANDEM_RETURN_IF_ERROR(SyncFolder(temporary_));
  fs::create_directory(old_, error);
  if (error) return FailedCall(old_, "cannot create", error.value());
  Status status = SyncFolder(folder_);
  if (status.ok()) status = TakeApart(present, old_);
  if (status.ok()) status = Move(temporary_, ready_);
  if (status.ok()) status = SyncFolder(folder_);
  if (status.ok()) status = Complete(ready_, folder_);
  if (!status.ok()) {
    const Status back = TakeBack(names);
    if (back.ok()) return status;
    return {status.code(), status.message() + "; and taking that back, " + back.message() +
                               "; the older files are in " + old_.string()};
  }
  fs::remove(ready_, error);
  fs::remove_all(old_, error);
  return {};
}

Status InsidePlacing::Recover() {
  std::error_code error;
  if (NameExists(ready_)) {
    TANDEM_RETURN_IF_ERROR(Complete(ready_, folder_));
    fs::remove(ready_, error);
  }
  if (NameExists(old_)) {
    if (!NameExists(folder_ / kConfigFile)) TANDEM_RETURN_IF_ERROR(Complete(old_, folder_));
    fs::remove_all(old_, error);
  }
  return {};
}

}  // namespace tandem
