// CalibrationFolder: where a calibration run keeps its files until the result is written: run.json,
// which says of which run they are, a file of each layer that is done, and the hidden states before
// the next one. Deletes files that such a run wrote and nothing else. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace tandem {

class CalibrationFolder {
 public:
  explicit CalibrationFolder(std::filesystem::path path) : path_(std::move(path)) {}

  // Takes over the files of the run that `identity` describes, or begins with none: files of
  // another run are deleted. FAILED_PRECONDITION, and nothing is touched, where the name holds
  // anything that is not surely a run's.
  Status Take(const std::string& identity, int64_t num_layers) const;

  const std::filesystem::path& path() const { return path_; }
  // The hidden states before a layer; what was calibrated of a layer.
  std::filesystem::path HiddenFile(int64_t layer) const;
  std::filesystem::path LayerFile(int64_t layer) const;
  // The first layers that are calibrated, of `num_layers`.
  int64_t LayersDone(int64_t num_layers) const;
  // Deletes the run's files, and the folder unless something else lies in it.
  Status Remove() const;

 private:
  const std::filesystem::path path_;
};

}  // namespace tandem
