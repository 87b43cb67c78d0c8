// OutputFolder: a folder that appears under its name whole or not at all. Files are written into a
// temporary folder next to it; Commit syncs that and swaps it in. An older folder of the same kind
// is replaced in one step (where the file system can exchange names), and files of other kinds in
// it (a tokenizer, a runtime.json) move to the new one; a folder of another kind is left alone.
// Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/status.h"

namespace tandem {

class OutputFolder {
 public:
  // Refuses a `path` that holds anything other than files of this kind of folder; `extension` is
  // that of its rank files, ".safetensors" or ".engine". Removes the remains of an interrupted run.
  static Result<std::unique_ptr<OutputFolder>> Create(const std::filesystem::path& path,
                                                      const std::string& extension);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where to write; valid until Commit.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Total size of the files written there so far.
  int64_t Bytes() const;
  Status Commit();

 private:
  OutputFolder(std::filesystem::path path, std::filesystem::path temporary, std::string extension)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        extension_(std::move(extension)) {}
  Status KeepForeignFiles() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::string extension_;
};

// Copies the tokenizer's files and generation_config.json where they exist, so that the folder can
// be served without others. Existing files of the same name are replaced.
Status CopySideFiles(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace tandem
