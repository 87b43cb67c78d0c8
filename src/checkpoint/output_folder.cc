#include "checkpoint/output_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Each defines a tokenizer (rust/text/src/sources).
constexpr std::string_view kTokenizerFiles[] = {"tokenizer.json",  "tekken.json",
                                                "tokenizer.model", "ice_text.model",
                                                "qwen.tiktoken",   "vocab.json"};
// What goes with them.
constexpr std::string_view kSideFiles[] = {
    "merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",   "chat_template.json",
    "chat_template.j2",  "generation_config.json"};

Status Failed(const fs::path& path, std::string_view what, int error) {
  return FailedPrecondition(path.string() + ": " + std::string(what) + ": " + std::strerror(error));
}

Status SyncFolder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed(folder, "cannot open", errno);
  const int synced = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return synced == 0 ? Status() : Failed(folder, "cannot sync", error);
}

Status CopyFile(const fs::path& from, const fs::path& to) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(from));
  TANDEM_ASSIGN_OR_RETURN(const auto writer, AtomicFileWriter::Create(to));
  TANDEM_RETURN_IF_ERROR(writer->Append(file->bytes()));
  return writer->Commit();
}

constexpr const char* kTemporary = ".tmp";
constexpr const char* kConfig = "config.json";

// "rank0.engine", "rank12.safetensors"
bool IsRankFile(const std::string& name, const std::string& extension) {
  if (!name.starts_with("rank") || !name.ends_with(extension)) return false;
  if (name.size() <= 4 + extension.size()) return false;
  const std::string digits = name.substr(4, name.size() - 4 - extension.size());
  return digits.find_first_not_of("0123456789") == std::string::npos;
}

// Swaps two folders in one step; false where the file system cannot.
bool Exchange(const fs::path& a, const fs::path& b) {
  constexpr unsigned kRenameExchange = 2;
  return ::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), kRenameExchange) == 0;
}

// Folders that may be replaced: empty ones and older results of the same kind.
Status CheckReplaceable(const fs::path& path, const std::string& extension) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  if (!fs::is_directory(path, error)) {
    return FailedPrecondition(path.string() + ": exists and is not a folder");
  }
  const bool is_empty = std::ranges::all_of(fs::directory_iterator(path, error), [](const auto& e) {
    const std::string name = e.path().filename().string();
    return name == "lost+found" || name.ends_with(kTemporary) || name.ends_with(".calibration");
  });
  if (is_empty) return {};
  if (fs::exists(path / kConfig, error) && fs::exists(path / ("rank0" + extension), error)) {
    return {};
  }
  return FailedPrecondition(path.string() +
                            ": exists and holds something else (no config.json with rank0" +
                            extension + "); choose a new or empty folder");
}

fs::path WithoutTrailingSlash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

bool IsMountPoint(const fs::path& path) {
  struct stat own = {}, parents = {};
  return ::stat(path.c_str(), &own) == 0 && ::stat(path.parent_path().c_str(), &parents) == 0 &&
         own.st_dev != parents.st_dev;
}

}  // namespace

OutputFolder::OutputFolder(fs::path path, std::string extension, Placing placing)
    : path_(std::move(path)),
      extension_(std::move(extension)),
      placing_(placing),
      temporary_(Beside(kTemporary)) {}

fs::path OutputFolder::Beside(const std::string& suffix) const {
  if (placing_ == Placing::kSwap) return path_.string() + suffix;
  return path_ / (path_.filename().string() + suffix);
}

Result<std::unique_ptr<OutputFolder>> OutputFolder::Create(const fs::path& path,
                                                           const std::string& extension,
                                                           std::optional<Placing> placing) {
  std::error_code error;
  const fs::path final_path = WithoutTrailingSlash(fs::absolute(path, error).lexically_normal());
  TANDEM_RETURN_IF_ERROR(CheckReplaceable(final_path, extension));
  const Placing possible = IsMountPoint(final_path) ? Placing::kInside : Placing::kSwap;
  std::unique_ptr<OutputFolder> output(
      new OutputFolder(final_path, extension, placing.value_or(possible)));
  fs::remove_all(output->temporary_, error);
  fs::create_directories(output->temporary_, error);
  if (error) return Failed(output->temporary_, "cannot create", error.value());
  return output;
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

int64_t OutputFolder::Bytes() const {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary_, error)) {
    if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

Status OutputFolder::KeepForeignFiles() const {
  std::error_code error;
  if (!fs::exists(path_, error)) return {};
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (IsRankFile(name, extension_) || name == kConfig || name.ends_with(kTemporary)) continue;
    const fs::path kept = temporary_ / name;
    if (fs::exists(kept, error)) continue;
    if (entry.is_regular_file(error)) {
      TANDEM_RETURN_IF_ERROR(CopyFile(entry.path(), kept));
    } else {
      fs::copy(entry.path(), kept, fs::copy_options::recursive | fs::copy_options::copy_symlinks,
               error);
      if (error) return Failed(entry.path(), "cannot copy", error.value());
    }
  }
  return {};
}

Status OutputFolder::Commit() {
  if (placing_ == Placing::kInside) return MoveInside();
  TANDEM_RETURN_IF_ERROR(KeepForeignFiles());
  TANDEM_RETURN_IF_ERROR(SyncFolder(temporary_));
  return Swap();
}

// While config.json is away the folder is no result, old or new.
Status OutputFolder::MoveInside() const {
  TANDEM_RETURN_IF_ERROR(SyncFolder(temporary_));
  std::error_code error;
  fs::remove(path_ / kConfig, error);
  TANDEM_RETURN_IF_ERROR(SyncFolder(path_));
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    if (IsRankFile(entry.path().filename().string(), extension_)) fs::remove(entry.path(), error);
  }
  const auto move = [this](const std::string& name) -> Status {
    if (::rename((temporary_ / name).c_str(), (path_ / name).c_str()) == 0) return {};
    return Failed(path_ / name, "cannot rename", errno);
  };
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(temporary_, error)) {
    names.push_back(entry.path().filename().string());
  }
  for (const std::string& name : names) {
    if (name != kConfig) TANDEM_RETURN_IF_ERROR(move(name));
  }
  TANDEM_RETURN_IF_ERROR(SyncFolder(path_));
  TANDEM_RETURN_IF_ERROR(move(kConfig));
  return SyncFolder(path_);
}

Status OutputFolder::Swap() const {
  std::error_code error;
  const bool exists = fs::exists(path_, error);
  if (!exists || !Exchange(temporary_, path_)) {
    // No folder there, or no exchange: between these two steps the name is absent, but never a
    // mixture.
    if (exists) fs::remove_all(path_, error);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return Failed(path_, "cannot rename", errno);
    }
  }
  return SyncFolder(path_.parent_path());
}

bool HasTokenizer(const fs::path& folder) {
  return std::ranges::any_of(
      kTokenizerFiles, [&folder](std::string_view name) { return NameExists(folder / name); });
}

Status CopySideFiles(const fs::path& from, const fs::path& to) {
  using Names = std::span<const std::string_view>;
  for (const Names names : {Names(kTokenizerFiles), Names(kSideFiles)}) {
    for (const std::string_view name : names) {
      if (!NameExists(from / name)) continue;
      TANDEM_RETURN_IF_ERROR(CopyFile(from / name, to / name));
    }
  }
  return {};
}

}  // namespace tandem
