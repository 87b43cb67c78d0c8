// Files as the project needs them: a read-only memory map, and a writer whose result appears under
// its final name whole or not at all (temporary name, fsync, rename, fsync of the folder).
// A MappedFile owns its mapping; its bytes may be read from any thread while it lives.
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

// Whether anything stands under this name, be it a link that leads nowhere: opening it then says
// what is wrong with it.
bool NameExists(const std::filesystem::path& path);

class MappedFile {
 public:
  // Regular files alone: a pipe or a device is INVALID_ARGUMENT and never waited for.
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

// The whole file as text; more than `max_bytes` is refused.
Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t max_bytes = 64u << 20);

// The lines of a text file that a person wrote, on whatever system: without their ends (LF or
// CRLF) and without the mark that some editors put at the start of UTF-8.
Result<std::vector<std::string>> ReadLines(const std::filesystem::path& path,
                                           size_t max_bytes = 64u << 20);

// Streams bytes into `path`: nothing stands under that name until Commit() succeeded. A writer that
// is destroyed before leaves no file behind; one that keeps what it has leaves `path`.partial, and
// so does a process that is killed. What is there already has to be a regular file. Used by one
// thread.
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
