#include "checkpoint/write_model.h"

#include "checkpoint/hf_writer.h"

namespace tandem {

Result<WriteReport> WriteModel(WeightSource& source, FolderKind kind, const Sharding& sharding,
                               const std::filesystem::path& model_dir, OutputFolder& output,
                               const WriteProgress& progress) {
  const std::filesystem::path& folder = output.temporary();
  TANDEM_RETURN_IF_ERROR(CopySideFiles(model_dir, folder));
  TANDEM_RETURN_IF_ERROR(kind == FolderKind::kHuggingFace
                             ? WriteHfFolder(source, model_dir, folder, progress)
                             : WriteCheckpoint(source, sharding, folder, progress));
  WriteReport report{source.spec(), sharding, output.Bytes()};
  TANDEM_RETURN_IF_ERROR(output.Commit());
  return report;
}

}  // namespace tandem
