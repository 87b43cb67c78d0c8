// OutputFolder: a folder that appears under its name whole or not at all. Files are written into a
// temporary folder next to it; Commit syncs that and swaps it in. An older folder of the same kind
// is replaced in one step (where the file system can exchange names): its weights, config.json and
// the tokenizer's files go together, files of other kinds in it (a runtime.json) stay; a folder of
// another kind is left alone. A folder that is a mount point, or holds one, is not swapped: the
// files are written and moved inside it (InsidePlacing). Nothing old is deleted before the new
// result is in place. A link is followed. One run at a time writes a folder: another one is
// refused. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_lock.h"
#include "base/status.h"
#include "checkpoint/inside_placing.h"

namespace tandem {

// What tells results of one kind from other folders.
struct OutputKind {
  // Of a file's name: whether weights of such a result are in it.
  std::function<bool(std::string_view name)> is_weights;
  // Of a folder with a config.json: whether it is such a result for sure, and may be replaced.
  std::function<bool(const std::filesystem::path& folder)> is_result;
  std::string result;  // for messages: "config.json with rank0.engine"
};
// Folders with a file for each rank: "rank0" and so on, with the extension ".safetensors" or
// ".engine".
OutputKind RankFiles(const std::string& extension);

class OutputFolder {
 public:
  // Refuses a `path` that holds anything other than files of this kind of folder. UNAVAILABLE while
  // another run writes it. Finishes, takes back or removes what an interrupted run left.
  static Result<std::unique_ptr<OutputFolder>> Create(const std::filesystem::path& path,
                                                      OutputKind kind,
                                                      const NameCalls& calls = NameCalls::System());
  // Removes the temporary folder, unless Commit failed.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where to write; valid until Commit.
  const std::filesystem::path& temporary() const { return temporary_; }
  // A name for files that outlive an interrupted run: next to the folder, or inside a mount point;
  // where an earlier run put them, if the folder was mounted differently then.
  std::filesystem::path Beside(const std::string& suffix) const;
  // RESOURCE_EXHAUSTED if the disk has no room for that many bytes now.
  Status CheckRoom(int64_t bytes) const;
  // Total size of the files written there so far.
  int64_t Bytes() const;
  // After an error the older files are untouched and the message says where the new result is.
  Status Commit();

 private:
  OutputFolder(std::filesystem::path path, OutputKind kind, const NameCalls& calls);
  bool IsOwn(const std::string& name) const;
  Status Lock();
  Status Recover();
  Result<std::vector<std::string>> KeepForeignFiles() const;
  Status Swap();
  Status CopyInside(const std::vector<std::string>& kept);

  const std::filesystem::path path_;
  const OutputKind kind_;
  const NameCalls calls_;
  const bool is_inside_;
  InsidePlacing inside_;
  const std::filesystem::path temporary_;
  std::unique_ptr<FileLock> lock_;
  const std::filesystem::path replaced_;  // the old folder, where names cannot be exchanged
  bool failed_ = false;                   // set by Commit
};

// Whether CopySideFiles takes files of this name along.
bool IsSideFile(std::string_view name);

// Whether a folder holds a tokenizer, in any form that is read.
bool HasTokenizer(const std::filesystem::path& folder);

// Copies the files in `tokenizer` that belong to it, and the model's generation_config.json, where
// they exist, so that the folder `to` can be served without others. Existing files of the same name
// are replaced.
Status CopySideFiles(const std::filesystem::path& model, const std::filesystem::path& tokenizer,
                     const std::filesystem::path& to);

// The first file that CopySideFiles with these arguments would change in `to`; empty: none.
std::string ChangedSideFile(const std::filesystem::path& model,
                            const std::filesystem::path& tokenizer,
                            const std::filesystem::path& to);

}  // namespace tandem
