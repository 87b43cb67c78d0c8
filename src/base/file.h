// File access: a read-only memory map, and a writer whose result appears under its final name whole
// or not at all (temporary name, fsync, rename, fsync of the folder). A MappedFile owns its
// mapping; its bytes may be read from any thread while it lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

// Whether this name exists, even as a link that leads nowhere: opening it then gives the error.
bool NameExists(const std::filesystem::path& path);

class MappedFile {
 public:
  // Regular files only: a pipe or a device is INVALID_ARGUMENT, and opening one never blocks.
  static Result<std::shared_ptr<MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size);
  std::filesystem::path path_;
  const std::byte* data_;
  size_t size_;
};

// The whole file as text; a file larger than `max_bytes` is refused.
Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t max_bytes = 64u << 20);

// The lines of a text file written by a person on any system: without line ends (LF or CRLF) and
// without the byte order mark that some editors put at the start of UTF-8.
Result<std::vector<std::string>> ReadLines(const std::filesystem::path& path,
                                           size_t max_bytes = 64u << 20);

// Streams bytes into `path`: the name does not exist until Commit() has succeeded. A writer
// destroyed before Commit() removes its file, unless it was told to keep it: then it leaves
// `path`.partial, as does a process that is killed. An existing file of this name has to be a
// regular one. Used by one thread.
class AtomicFileWriter {
 public:
  enum class Unfinished : uint8_t { kRemove, kKeep };
  static Result<std::unique_ptr<AtomicFileWriter>> Create(
      const std::filesystem::path& path, Unfinished unfinished = Unfinished::kRemove);
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  Status Append(std::span<const std::byte> bytes);
  Status Append(std::string_view text);
  // Replaces bytes that were appended before, from `offset` on.
  Status Overwrite(uint64_t offset, std::string_view text);
  Status Commit();

 private:
  AtomicFileWriter(std::filesystem::path path, std::filesystem::path temporary,
                   Unfinished unfinished, int fd);
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Unfinished unfinished_;
  int fd_;
};

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view text);

}  // namespace tandem
