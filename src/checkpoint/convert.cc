#include "checkpoint/convert.h"

#include <optional>
#include <utility>

#include "tensor/convert.h"

namespace tandem {
namespace {

Result<std::optional<DType>> ParseOption(const std::string& name) {
  if (name == "auto") return std::optional<DType>();
  const auto dtype = ParseDType(name);
  if (dtype && IsFloat(*dtype)) return dtype;
  return InvalidArgument("dtype is \"" + name +
                         "\"; it must be auto, float16, bfloat16 or float32");
}

}  // namespace

Result<std::unique_ptr<HfReader>> OpenAsDType(const std::filesystem::path& folder,
                                              const std::string& dtype,
                                              const ConfigOptions& config) {
  TANDEM_ASSIGN_OR_RETURN(const auto asked, ParseOption(dtype));
  TANDEM_ASSIGN_OR_RETURN(auto reader, HfReader::Open(folder, asked, config));
  if (!asked && reader->spec().dtype == DType::kF32) {
    return HfReader::Open(folder, DType::kF16, config);
  }
  return reader;
}

Result<WriteReport> Convert(const ConvertOptions& options, const WriteProgress& progress) {
  TANDEM_ASSIGN_OR_RETURN(
      const auto reader,
      OpenAsDType(options.quantized_dir.empty() ? options.model_dir : options.quantized_dir,
                  options.dtype, options.config));
  const Sharding sharding{options.tp_size, options.parallel_embedding,
                          options.embedding_sharding_dim, options.pp_size};
  TANDEM_RETURN_IF_ERROR(CheckSharding(reader->spec(), sharding));
  TANDEM_ASSIGN_OR_RETURN(const auto output,
                          OutputFolder::Create(options.output_dir, ".safetensors"));
  return WriteModel(*reader, FolderKind::kCheckpoint, sharding, options.model_dir, *output,
                    progress);
}

}  // namespace tandem
