#include "checkpoint/write_model.h"

namespace tandem {

OutputKind OutputOf(FolderKind kind) {
  return kind == FolderKind::kHuggingFace ? HfFolders() : RankFiles(".safetensors");
}

Result<WriteReport> WriteModel(WeightSource& source, FolderKind kind, const Sharding& sharding,
                               const ModelFolder& model, OutputFolder& output,
                               const WriteProgress& progress) {
  const std::filesystem::path& folder = output.temporary();
  TANDEM_RETURN_IF_ERROR(CopySideFiles(
      model.path, model.tokenizer_dir.empty() ? model.path : model.tokenizer_dir, folder));
  TANDEM_RETURN_IF_ERROR(kind == FolderKind::kHuggingFace
                             ? WriteHfFolder(source, model, folder, progress)
                             : WriteCheckpoint(source, sharding, folder, progress));
  WriteReport report{source.spec(), sharding, output.Bytes()};
  TANDEM_RETURN_IF_ERROR(output.Commit());
  return report;
}

}  // namespace tandem
