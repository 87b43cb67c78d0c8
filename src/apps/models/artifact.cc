#include "apps/models/artifact.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/file.h"
#include "checkpoint/output_folder.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelConfig = "config.pbtxt";
constexpr const char* kVersion = "1";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";

// Those of its inputs and outputs that every request has: the server has a table of all.
constexpr std::string_view kConfigText = R"(# Written by tandem partition.
name: "{}"
backend: "tensorrtllm"
max_batch_size: {}
model_transaction_policy {{ decoupled: true }}
input [
  {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] }},
  {{ name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }}
]
output [
  {{ name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
  {{ name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
)";

bool HoldsEngine(const fs::path& model) {
  return NameExists(model / kModelConfig) && NameExists(model / kVersion / kConfigFile) &&
         NameExists(model / kVersion / "rank0.engine");
}

}  // namespace

Result<fs::path> EngineOfArtifact(const fs::path& folder) {
  if (HoldsEngine(folder)) return folder / kVersion;
  if (NameExists(folder / kConfigFile)) return folder;  // a model of another form
  std::vector<fs::path> models;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (HoldsEngine(entry->path())) models.push_back(entry->path());
  }
  if (models.empty()) return folder;
  if (models.size() == 1) return models.front() / kVersion;
  std::ranges::sort(models);
  std::string names;
  for (const fs::path& model : models) {
    names += (names.empty() ? "" : ", ") + model.filename().string();
  }
  return InvalidArgument(fmt::format(
      "{}: holds {} models ({}); name one of these folders, or the whole with --model_repo",
      folder.string(), models.size(), names));
}

Status WriteArtifactFiles(const fs::path& model, const fs::path& tokenizer, int64_t max_batch_size,
                          const fs::path& folder) {
  TANDEM_RETURN_IF_ERROR(CopySideFiles(model, tokenizer, folder));
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(model / kConfigFile));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(folder / kConfigFile, config));
  // By this file, too, LMI recognizes an artifact.
  if (!NameExists(folder / kTokenizerConfig)) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(folder / kTokenizerConfig, "{}\n"));
  }
  return WriteFileAtomically(folder / kModelConfig, fmt::format(fmt::runtime(kConfigText),
                                                                kArtifactModel, max_batch_size));
}

Status CheckArtifactFolder(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return {};
  fs::directory_iterator entry(folder, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    // Of an interrupted run, too: "1.tmp", "checkpoint.calibration".
    const bool is_own = IsSideFile(name) || name == kConfigFile || name == kModelConfig ||
                        name == kVersion || name.starts_with(std::string(kVersion) + ".") ||
                        name.starts_with("checkpoint") || name.ends_with(kTemporarySuffix);
    if (is_own) continue;
    return FailedPrecondition(
        fmt::format("{}: exists and holds something else ({}); choose a new or empty folder",
                    folder.string(), name));
  }
  return error ? FailedPrecondition(folder.string() + ": cannot list: " + error.message())
               : Status();
}

}  // namespace tandem::apps
