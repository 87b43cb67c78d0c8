// The container of one rank's weights in an engine folder: rankN.engine. Sections lie on 64-byte
// boundaries, each with an xxh3-128 checksum; all other bytes are covered too, so any damage is
// found and located. Portable between machines and versions. docs/formats/engine.md has the layout.
// Reader and writer are used by one thread each.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/trtllm/sharded_source.h"

namespace tandem {

// The path of a rank's weights in an engine folder.
std::filesystem::path EngineFilePath(const std::filesystem::path& folder, int64_t rank);

class EngineFileWriter {
 public:
  static Result<std::unique_ptr<EngineFileWriter>> Create(const std::filesystem::path& path,
                                                          int64_t rank, int64_t world_size);
  Status Append(const std::string& name, const Tensor& tensor);
  // Writes the table and gives the file its name.
  Status Commit();

 private:
  struct Section {
    std::string name;
    DType dtype;
    Shape shape;
    uint64_t offset;
    uint64_t bytes;
    std::string checksum;  // 32 hex digits
  };
  EngineFileWriter(std::unique_ptr<AtomicFileWriter> file, int64_t rank, int64_t world_size)
      : file_(std::move(file)), rank_(rank), world_size_(world_size) {}
  Status PadToBoundary();
  std::string TableJson() const;

  std::unique_ptr<AtomicFileWriter> file_;
  int64_t rank_;
  int64_t world_size_;
  uint64_t written_ = 0;
  std::vector<Section> sections_;
};

class EngineFile final : public RankFile {
 public:
  // Checks everything but the sections' bytes, which are checked when first used.
  static Result<std::unique_ptr<EngineFile>> Open(const std::filesystem::path& path, int64_t rank,
                                                  int64_t world_size);

  const std::filesystem::path& path() const override { return file_->path(); }
  Status Check(const RankTensor& tensor) override;
  Result<Tensor> Read(const RankTensor& tensor, ScratchBuffers& scratch) override;
  // Verifies every section that has not been verified yet.
  Status Finish() override;

 private:
  struct Section {
    Tensor tensor;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    std::string checksum;
    bool verified = false;
  };
  explicit EngineFile(std::shared_ptr<MappedFile> file) : file_(std::move(file)) {}
  // NOT_FOUND names file and section.
  Result<Section*> Find(const std::string& name);
  Status Verify(const std::string& name, Section& section) const;
  Result<std::string_view> Table() const;
  Status ReadTable(std::string_view json, int64_t rank, int64_t world_size);
  Status CheckCoverage(uint64_t table_offset) const;
  Status Damaged(const std::string& what) const;

  std::shared_ptr<MappedFile> file_;
  std::map<std::string, Section> sections_;
};

}  // namespace tandem
