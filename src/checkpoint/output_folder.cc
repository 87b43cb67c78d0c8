#include "checkpoint/output_folder.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/options.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Each defines a tokenizer (rust/text/src/sources).
constexpr std::string_view kTokenizerFiles[] = {"tokenizer.json",  "tekken.json",
                                                "tokenizer.model", "ice_text.model",
                                                "qwen.tiktoken",   "vocab.json"};
// What goes with them.
constexpr std::string_view kBesideTokenizer[] = {
    "merges.txt",          "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "chat_template.json",    "chat_template.j2"};
constexpr std::string_view kGenerationConfig = "generation_config.json";

Status CopyFile(const fs::path& from, const fs::path& to) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(from));
  TANDEM_ASSIGN_OR_RETURN(const auto writer, AtomicFileWriter::Create(to));
  TANDEM_RETURN_IF_ERROR(writer->Append(file->bytes()));
  return writer->Commit();
}

// Not where one of them cannot be read.
bool HaveSameBytes(const fs::path& one, const fs::path& other) {
  const auto first = MappedFile::Open(one), second = MappedFile::Open(other);
  return first.ok() && second.ok() && std::ranges::equal((*first)->bytes(), (*second)->bytes());
}

struct SideFile {
  const fs::path& from;
  std::string_view name;
};

// Those that exist.
std::vector<SideFile> SideFilesOf(const fs::path& model, const fs::path& tokenizer) {
  std::vector<SideFile> files;
  const auto add = [&files](const fs::path& from, std::string_view name) {
    if (NameExists(from / name)) files.push_back({from, name});
  };
  for (const std::string_view name : kTokenizerFiles) add(tokenizer, name);
  for (const std::string_view name : kBesideTokenizer) add(tokenizer, name);
  add(model, kGenerationConfig);
  return files;
}

// "rank0.engine", "rank12.safetensors"
bool IsRankFile(std::string_view name, std::string_view extension) {
  if (!name.starts_with("rank") || !name.ends_with(extension)) return false;
  if (name.size() <= 4 + extension.size()) return false;
  const std::string_view digits = name.substr(4, name.size() - 4 - extension.size());
  return digits.find_first_not_of("0123456789") == std::string_view::npos;
}

// Folders that may be replaced: empty ones and older results of the same kind.
Status CheckReplaceable(const fs::path& path, const OutputKind& kind) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  if (!fs::is_directory(path, error)) {
    return FailedPrecondition(path.string() + ": exists and is not a folder");
  }
  const fs::directory_iterator entries(path, error);
  if (error) return FailedCall(path, "cannot list", error.value());
  const bool is_empty = std::ranges::all_of(entries, [](const auto& e) {
    const std::string name = e.path().filename().string();
    return name == "lost+found" || name.ends_with(kTemporarySuffix) ||
           name.ends_with(".calibration");
  });
  if (is_empty) return {};
  if (fs::exists(path / kConfigFile, error) && kind.is_result(path)) return {};
  return FailedPrecondition(path.string() + ": exists and holds something else (no " + kind.result +
                            "); choose a new or empty folder");
}

// The folder that a path leads to, even where it does not exist yet.
Result<fs::path> FollowLinks(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::absolute(path, error);
  constexpr int kMaxLinks = 40;
  for (int links = 0; links <= kMaxLinks; ++links) {
    target = fs::weakly_canonical(target, error);
    if (error) return FailedCall(path, "cannot follow", error.value());
    if (!target.has_filename()) target = target.parent_path();
    if (!fs::is_symlink(target, error)) return target;
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  return FailedPrecondition(path.string() + ": too many links");
}

// A mount point inside would be renamed along, and emptied with the old folder.
bool HoldsMountPoint(const fs::path& path, const NameCalls& calls) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return false;
  if (calls.is_mount_point(path)) return true;
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator entry(path, kOptions, error), end; !error && entry != end;
       entry.increment(error)) {
    if (calls.is_mount_point(entry->path())) return true;
  }
  return false;
}

}  // namespace

bool IsSideFile(std::string_view name) {
  return std::ranges::find(kTokenizerFiles, name) != std::end(kTokenizerFiles) ||
         std::ranges::find(kBesideTokenizer, name) != std::end(kBesideTokenizer) ||
         name == kGenerationConfig;
}

OutputKind RankFiles(const std::string& extension) {
  const std::string first = "rank0" + extension;
  return {.is_weights = [=](std::string_view name) { return IsRankFile(name, extension); },
          .is_result = [=](const fs::path& folder) { return NameExists(folder / first); },
          .result = std::string(kConfigFile) + " with " + first};
}

OutputFolder::OutputFolder(fs::path path, OutputKind kind, const NameCalls& calls)
    : path_(std::move(path)),
      kind_(std::move(kind)),
      calls_(calls),
      is_inside_(HoldsMountPoint(path_, calls_)),
      inside_(
          path_, [this](const std::string& name) { return IsOwn(name); }, calls_),
      temporary_(is_inside_ ? inside_.temporary() : fs::path(path_.string() + kTemporarySuffix)),
      replaced_(path_.string() + ".old" + kTemporarySuffix) {}

fs::path OutputFolder::Beside(const std::string& suffix) const {
  const fs::path inside = inside_.Name(suffix), beside = path_.string() + suffix;
  if (is_inside_) return NameExists(beside) && !NameExists(inside) ? beside : inside;
  return NameExists(inside) && !NameExists(beside) ? inside : beside;
}

// What a result consists of, also half-written.
bool OutputFolder::IsOwn(const std::string& name) const {
  const std::string whole =
      name.ends_with(kTemporarySuffix)
          ? name.substr(0, name.size() - std::string_view(kTemporarySuffix).size())
          : name;
  return kind_.is_weights(whole) || whole == kConfigFile || IsSideFile(whole);
}

Result<std::unique_ptr<OutputFolder>> OutputFolder::Create(const fs::path& path, OutputKind kind,
                                                           const NameCalls& calls) {
  TANDEM_ASSIGN_OR_RETURN(const fs::path final_path, FollowLinks(path));
  std::unique_ptr<OutputFolder> output(new OutputFolder(final_path, std::move(kind), calls));
  TANDEM_RETURN_IF_ERROR(output->Lock());
  TANDEM_RETURN_IF_ERROR(output->Recover());
  TANDEM_RETURN_IF_ERROR(CheckReplaceable(final_path, output->kind_));
  std::error_code error;
  fs::remove_all(output->inside_.temporary(), error);
  fs::remove_all(output->temporary_, error);
  fs::create_directories(output->temporary_, error);
  if (error) return FailedCall(output->temporary_, "cannot create", error.value());
  return output;
}

// The lock's name is beside the temporary files: the folder itself is exchanged for another.
Status OutputFolder::Lock() {
  const std::string suffix = std::string(".lock") + kTemporarySuffix;
  const fs::path name = is_inside_ ? inside_.Name(suffix) : fs::path(path_.string() + suffix);
  std::error_code error;
  fs::create_directories(name.parent_path(), error);
  if (error) return FailedCall(name.parent_path(), "cannot create", error.value());
  auto lock = FileLock::Take(name);
  if (lock.status().code() == Code::kUnavailable) {
    return Unavailable(path_.string() + ": another run is writing this folder (" + name.string() +
                       " is locked); wait until it has ended, or choose another folder");
  }
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  return {};
}

Status OutputFolder::Recover() {
  std::error_code error;
  if (!is_inside_ && NameExists(replaced_)) {
    if (NameExists(path_)) {
      fs::remove_all(replaced_, error);
    } else if (const int failed = calls_.rename(replaced_, path_); failed != 0) {
      return FailedCall(path_, "cannot rename", failed);
    }
  }
  return fs::is_directory(path_, error) ? inside_.Recover() : Status();
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (lock_ && !failed_) fs::remove_all(temporary_, ignored);
}

Status OutputFolder::CheckRoom(int64_t bytes) const {
  std::error_code error;
  const fs::space_info disk = fs::space(temporary_, error);
  if (error || disk.available >= static_cast<uintmax_t>(bytes)) return {};
  return ResourceExhausted(path_.string() + ": needs " + FormatBytes(bytes) +
                           ", and its disk has " +
                           FormatBytes(static_cast<int64_t>(disk.available)) + " left");
}

int64_t OutputFolder::Bytes() const {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary_, error)) {
    if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

// Copies the files that are not of a result; their names.
Result<std::vector<std::string>> OutputFolder::KeepForeignFiles() const {
  std::error_code error;
  std::vector<std::string> kept;
  if (!fs::exists(path_, error)) return kept;
  fs::directory_iterator entries(path_, error);
  if (error) return FailedCall(path_, "cannot list", error.value());
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (IsOwn(name) || NameExists(temporary_ / name)) continue;
    kept.push_back(name);
    if (entry.is_regular_file(error) && !entry.is_symlink(error)) {
      TANDEM_RETURN_IF_ERROR(CopyFile(entry.path(), temporary_ / name));
    } else {
      fs::copy(entry.path(), temporary_ / name,
               fs::copy_options::recursive | fs::copy_options::copy_symlinks, error);
      if (error) return FailedCall(entry.path(), "cannot copy", error.value());
    }
  }
  return kept;
}

Status OutputFolder::Commit() {
  const Status placed = is_inside_ ? inside_.Place() : Swap();
  if (placed.ok()) return is_inside_ ? placed : SyncFolder(path_.parent_path());
  failed_ = true;
  std::error_code error;
  const std::string place = fs::exists(temporary_, error)
                                ? temporary_.string()
                                : path_.string() + ", where the next run completes it";
  return {placed.code(), placed.message() + "; the new result is in " + place};
}

Status OutputFolder::Swap() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> kept, KeepForeignFiles());
  TANDEM_RETURN_IF_ERROR(SyncFolder(temporary_));
  const bool exists = NameExists(path_);
  if (exists && calls_.exchange(temporary_, path_) == 0) return {};
  // No folder there, or no exchange: between these two steps the name is absent, but never a
  // mixture. A folder that cannot be moved (EBUSY of a mount that was not seen, EXDEV of an
  // overlay) stays and is filled.
  if (exists && calls_.rename(path_, replaced_) != 0) return CopyInside(kept);
  if (const int failed = calls_.rename(temporary_, path_); failed != 0) {
    if (exists && calls_.rename(replaced_, path_) != 0) {
      return FailedPrecondition(path_.string() + ": cannot rename; the older files are in " +
                                replaced_.string());
    }
    return FailedCall(path_, "cannot rename", failed);
  }
  TANDEM_RETURN_IF_ERROR(SyncFolder(path_.parent_path()));
  std::error_code ignored;
  fs::remove_all(replaced_, ignored);
  return {};
}

// `kept`: files of the folder, which stay where they are.
Status OutputFolder::CopyInside(const std::vector<std::string>& kept) {
  std::error_code error;
  fs::create_directories(inside_.temporary(), error);
  if (error) return FailedCall(inside_.temporary(), "cannot create", error.value());
  const auto copy = [&]() -> Status {
    for (const auto& entry : fs::directory_iterator(temporary_, error)) {
      const std::string name = entry.path().filename().string();
      if (std::ranges::find(kept, name) != kept.end()) continue;
      TANDEM_RETURN_IF_ERROR(CopyFile(entry.path(), inside_.temporary() / name));
    }
    return error ? FailedCall(temporary_, "cannot list", error.value()) : inside_.Place();
  };
  const Status copied = copy();
  fs::remove_all(inside_.temporary(), error);
  return copied;
}

bool HasTokenizer(const fs::path& folder) {
  return std::ranges::any_of(
      kTokenizerFiles, [&folder](std::string_view name) { return NameExists(folder / name); });
}

Status CopySideFiles(const fs::path& model, const fs::path& tokenizer, const fs::path& to) {
  for (const SideFile& file : SideFilesOf(model, tokenizer)) {
    TANDEM_RETURN_IF_ERROR(CopyFile(file.from / file.name, to / file.name));
  }
  return {};
}

std::string ChangedSideFile(const fs::path& model, const fs::path& tokenizer, const fs::path& to) {
  for (const SideFile& file : SideFilesOf(model, tokenizer)) {
    if (!HaveSameBytes(file.from / file.name, to / file.name)) return std::string(file.name);
  }
  return {};
}

}  // namespace tandem
