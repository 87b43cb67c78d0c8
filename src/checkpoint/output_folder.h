// OutputFolder: a folder that appears under its name whole or not at all. Files are written into a
// temporary folder next to it; Commit syncs that and swaps it in. An older folder of the same kind
// is replaced in one step (where the file system can exchange names), and files of other kinds in
// it (a tokenizer, a runtime.json) move to the new one; a folder of another kind is left alone. A
// folder that is a mount point cannot be swapped: its files are written inside it, where
// config.json goes first and comes back last. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"

namespace tandem {

class OutputFolder {
 public:
  enum class Placing : uint8_t { kSwap, kInside };

  // Refuses a `path` that holds anything other than files of this kind of folder; `extension` is
  // that of its rank files, ".safetensors" or ".engine". Removes the remains of an interrupted run.
  // `placing`: what the path allows, unless a test says otherwise.
  static Result<std::unique_ptr<OutputFolder>> Create(const std::filesystem::path& path,
                                                      const std::string& extension,
                                                      std::optional<Placing> placing = {});
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where to write; valid until Commit.
  const std::filesystem::path& temporary() const { return temporary_; }
  // A name for files that outlive an interrupted run: next to the folder, or inside a mount point.
  std::filesystem::path Beside(const std::string& suffix) const;
  // Total size of the files written there so far.
  int64_t Bytes() const;
  Status Commit();

 private:
  OutputFolder(std::filesystem::path path, std::string extension, Placing placing);
  Status KeepForeignFiles() const;
  Status Swap() const;
  Status MoveInside() const;

  const std::filesystem::path path_;
  const std::string extension_;
  const Placing placing_;
  const std::filesystem::path temporary_;
};

// Whether a folder holds a tokenizer, in any form that is read.
bool HasTokenizer(const std::filesystem::path& folder);

// Copies the tokenizer's files and generation_config.json where they exist, so that the folder can
// be served without others. Existing files of the same name are replaced.
Status CopySideFiles(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace tandem
