// Writes a model, quantized or plain, as a Hugging Face folder that vLLM and transformers read: its
// own config.json with a quantization_config of compressed-tensors, and model.safetensors in
// shards, with the names and the fused tensors of its family. One thread.
#pragma once

#include <filesystem>

#include "checkpoint/trtllm/checkpoint.h"
#include "model/weight_source.h"

namespace tandem {

// UNIMPLEMENTED names a family whose folders keep matrices in a way that the format has no form
// for.
Status CheckHfFolder(const ModelSpec& spec);

// `model_dir`: where the config.json is taken from. `folder` must exist.
Status WriteHfFolder(WeightSource& source, const std::filesystem::path& model_dir,
                     const std::filesystem::path& folder, const WriteProgress& progress = {});

}  // namespace tandem
