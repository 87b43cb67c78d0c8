// WriteModel: a model becomes a new folder, a checkpoint in TensorRT-LLM's layout or a Hugging Face
// folder, with the tokenizer's files of the model that it was made from. What `tandem convert` and
// `tandem quantize` have in common. One thread.
#pragma once

#include <cstdint>
#include <filesystem>

#include "checkpoint/output_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "model/weight_source.h"

namespace tandem {

enum class FolderKind : uint8_t { kCheckpoint, kHuggingFace };

struct WriteReport {
  ModelSpec spec;
  Sharding sharding;  // of a checkpoint
  int64_t bytes_written = 0;
};

// `model_dir`: where the files beside the weights come from: those that there are, and config.json
// for kHuggingFace. `sharding`: of a checkpoint. The folder appears under its name when all is
// written.
Result<WriteReport> WriteModel(WeightSource& source, FolderKind kind, const Sharding& sharding,
                               const std::filesystem::path& model_dir, OutputFolder& output,
                               const WriteProgress& progress = {});

}  // namespace tandem
