// Writes a model, quantized or plain, as a Hugging Face folder that vLLM and transformers read: its
// own config.json with a quantization_config of compressed-tensors, and model.safetensors in
// shards, with the names and the fused tensors of its family. One thread.
#pragma once

#include <filesystem>

#include "checkpoint/output_folder.h"
#include "checkpoint/trtllm/checkpoint.h"
#include "model/config_options.h"
#include "model/weight_source.h"

namespace tandem {

// Folders of quantized models that WriteHfFolder wrote for sure: with its quantization_config and
// the checksums of every tensor. Those of other tools are none, nor are models in 16 bits.
OutputKind HfFolders();

// The model that a folder is made from. The config.json of a written folder is this one's, with
// what the options say as keys of the family (ConfigWithOptions).
struct ModelFolder {
  std::filesystem::path path;
  ConfigOptions options = {};
  std::filesystem::path tokenizer_dir = {};  // of the tokenizer's files; empty: path
};

// UNIMPLEMENTED names a family whose folders keep matrices in a way that the format has no form
// for, or options that no key of its config says.
Status CheckHfFolder(const ModelSpec& spec, const ModelFolder& model);

// `folder` must exist.
Status WriteHfFolder(WeightSource& source, const ModelFolder& model,
                     const std::filesystem::path& folder, const WriteProgress& progress = {});

}  // namespace tandem
