#include "quantize/calibration_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRunFile = "run.json";
// The number of a layer follows.
constexpr std::string_view kHiddenPrefix = "hidden-";
constexpr std::string_view kLayerPrefix = "layer-";
constexpr std::string_view kLayerSuffix = ".safetensors";
constexpr std::string_view kHalfWritten = ".tmp";  // of AtomicFileWriter
// The first line of run.json. To be raised with every change of what the files hold or how they are
// computed, so that no program goes on with what another began differently.
constexpr std::string_view kVersionWord = "calibration ";
constexpr int kVersion = 3;

bool TakePrefix(std::string_view prefix, std::string_view& text) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool TakeSuffix(std::string_view suffix, std::string_view& text) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Of files beside run.json.
bool IsLayersName(std::string_view name) {
  TakeSuffix(kHalfWritten, name);
  if (TakePrefix(kHiddenPrefix, name)) return IsNumber(name);
  return TakePrefix(kLayerPrefix, name) && TakeSuffix(kLayerSuffix, name) && IsNumber(name);
}

// Whether a run of this or another version wrote it: the version, then the model's description as
// an object over several lines.
bool IsRunText(std::string_view text) {
  if (!TakePrefix(kVersionWord, text)) return false;
  const size_t version_end = text.find('\n');
  if (!IsNumber(text.substr(0, version_end))) return false;
  constexpr std::string_view kModelEnd = "\n}\n";
  const size_t model_end = text.find(kModelEnd);
  if (model_end == std::string_view::npos) return false;
  const std::string_view model =
      text.substr(version_end, model_end + kModelEnd.size() - version_end);
  return nlohmann::json::parse(model, nullptr, /*allow_exceptions=*/false).contains("family");
}

// Regular files that a run may have written, run.json apart; `other`: something else, if anything.
struct Found {
  std::vector<fs::path> files;
  std::string other;
};

Result<Found> FindFiles(const fs::path& folder) {
  Found found;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) {
    return FailedPrecondition(folder.string() +
                              ": is in the way of calibration's files, and cannot be listed (" +
                              error.message() + "); move it away or remove it");
  }
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    std::string_view whole = name;
    TakeSuffix(kHalfWritten, whole);
    const bool is_file = entry.symlink_status(error).type() == fs::file_type::regular;
    if (is_file && IsLayersName(name)) {
      found.files.push_back(entry.path());
    } else if (!is_file || whole != kRunFile) {
      found.other = name;
    }
  }
  return found;
}

// That everything in the folder is a run's. Without run.json it is empty: a run begins with that
// file and removes it last.
Status CheckOurs(const fs::path& folder) {
  TANDEM_ASSIGN_OR_RETURN(const Found found, FindFiles(folder));
  const auto refused = [&folder](const std::string& why) {
    return FailedPrecondition(folder.string() + ": is in the way of calibration's files: " + why +
                              "; move it away or remove it");
  };
  if (!found.other.empty()) return refused("\"" + found.other + "\" in it is none of those");
  const fs::path run_file = folder / kRunFile;
  if (!NameExists(run_file)) {
    if (found.files.empty()) return {};
    return refused("it has no run.json, which says of which run its files are");
  }
  const auto text = ReadTextFile(run_file);
  if (text.ok() && IsRunText(*text)) return {};
  return refused("its run.json is none of a calibration run");
}

}  // namespace

fs::path CalibrationFolder::HiddenFile(int64_t layer) const {
  return path_ / (std::string(kHiddenPrefix) + std::to_string(layer));
}

fs::path CalibrationFolder::LayerFile(int64_t layer) const {
  return path_ / (std::string(kLayerPrefix) + std::to_string(layer) + std::string(kLayerSuffix));
}

int64_t CalibrationFolder::LayersDone(int64_t num_layers) const {
  int64_t layer = 0;
  while (layer < num_layers && NameExists(LayerFile(layer))) ++layer;
  return layer;
}

Status CalibrationFolder::Take(const std::string& identity, int64_t num_layers) const {
  const fs::path run_file = path_ / kRunFile;
  const std::string text = std::string(kVersionWord) + std::to_string(kVersion) + "\n" + identity;
  if (NameExists(path_)) {
    const auto found = ReadTextFile(run_file);
    const int64_t done = LayersDone(num_layers);
    // Without the hidden states the run was being removed.
    const bool goes_on = done == 0 || done == num_layers || NameExists(HiddenFile(done));
    if (found.ok() && *found == text && goes_on) return {};
    TANDEM_RETURN_IF_ERROR(CheckOurs(path_));
    TANDEM_RETURN_IF_ERROR(Remove());
  }
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) return Unavailable(path_.string() + ": cannot be made: " + error.message());
  return WriteFileAtomically(run_file, text);
}

// run.json last: without it the other files are nobody's.
Status CalibrationFolder::Remove() const {
  TANDEM_ASSIGN_OR_RETURN(Found found, FindFiles(path_));
  const fs::path run_file = path_ / kRunFile;
  found.files.emplace_back(run_file.string() + std::string(kHalfWritten));
  found.files.push_back(run_file);
  std::error_code error;
  for (const fs::path& file : found.files) {
    fs::remove(file, error);
    if (error) return Unavailable(file.string() + ": cannot be removed: " + error.message());
  }
  if (found.other.empty()) fs::remove(path_, error);
  return {};
}

}  // namespace tandem
