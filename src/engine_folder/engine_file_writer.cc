#include <nlohmann/json.hpp>
#include <utility>

#include "base/checksum.h"
#include "base/little_endian.h"
#include "engine_folder/engine_file.h"
#include "engine_folder/engine_layout.h"

namespace tandem {

using namespace engine_layout;

Result<std::unique_ptr<EngineFileWriter>> EngineFileWriter::Create(
    const std::filesystem::path& path, int64_t rank, int64_t world_size) {
  TANDEM_ASSIGN_OR_RETURN(auto file, AtomicFileWriter::Create(path));
  std::string head = std::string(kMagic) + LittleEndian64(kFormat);
  head.resize(kHeadBytes, '\0');
  TANDEM_RETURN_IF_ERROR(file->Append(head));
  std::unique_ptr<EngineFileWriter> writer(new EngineFileWriter(std::move(file), rank, world_size));
  writer->written_ = kHeadBytes;
  return writer;
}

Status EngineFileWriter::PadToBoundary() {
  const uint64_t padding = (kAlignment - written_ % kAlignment) % kAlignment;
  written_ += padding;
  return file_->Append(std::string(padding, '\0'));
}

Status EngineFileWriter::Append(const std::string& name, const Tensor& tensor) {
  TANDEM_RETURN_IF_ERROR(PadToBoundary());
  const std::span bytes(static_cast<const std::byte*>(tensor.data),
                        static_cast<size_t>(tensor.NumBytes()));
  sections_.push_back({name, tensor.dtype, tensor.shape, written_, bytes.size(), Checksum(bytes)});
  written_ += bytes.size();
  return file_->Append(bytes);
}

std::string EngineFileWriter::TableJson() const {
  using Json = nlohmann::ordered_json;
  Json sections = Json::object();
  for (const Section& section : sections_) {
    Json shape = Json::array();
    for (int i = 0; i < section.shape.rank(); ++i) shape.push_back(section.shape[i]);
    sections[section.name] = {{"dtype", DTypeName(section.dtype)},
                              {"shape", std::move(shape)},
                              {"offset", section.offset},
                              {"bytes", section.bytes},
                              {"xxh3_128", section.checksum}};
  }
  return Json{{"rank", rank_}, {"world_size", world_size_}, {"sections", std::move(sections)}}
      .dump();
}

Status EngineFileWriter::Commit() {
  TANDEM_RETURN_IF_ERROR(PadToBoundary());
  const std::string table = TableJson();
  std::string trailer = LittleEndian64(written_) + LittleEndian64(table.size()) +
                        Checksum(std::as_bytes(std::span(table)));
  trailer.resize(kTrailerBytes - kEndMagic.size(), '\0');
  TANDEM_RETURN_IF_ERROR(file_->Append(table));
  TANDEM_RETURN_IF_ERROR(file_->Append(trailer + std::string(kEndMagic)));
  return file_->Commit();
}

}  // namespace tandem
