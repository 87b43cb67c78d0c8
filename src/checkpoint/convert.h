// `tandem convert`: a Hugging Face folder becomes a checkpoint in TensorRT-LLM's layout, for one or
// more tensor-parallel ranks. Runs on the caller's thread.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/hf_reader.h"
#include "checkpoint/write_model.h"
#include "model/config_options.h"

namespace tandem {

struct ConvertOptions {
  std::filesystem::path model_dir;
  std::filesystem::path output_dir;
  ConfigOptions config = {};
  // auto, float16, bfloat16, float32. auto keeps the model's type, but float32 becomes float16.
  std::string dtype = "auto";
  // Of weights that are quantized already, if they are in a folder of their own; tokenizer and
  // defaults are still model_dir's.
  std::filesystem::path quantized_dir = {};
  int64_t tp_size = 1;
  int64_t pp_size = 1;
  bool parallel_embedding = false;
  int64_t embedding_sharding_dim = 0;
};

// A Hugging Face folder in the type that ConvertOptions::dtype names.
Result<std::unique_ptr<HfReader>> OpenAsDType(const std::filesystem::path& folder,
                                              const std::string& dtype,
                                              const ConfigOptions& config = {});

// The folder appears when it is complete. It can be served without other files if the source folder
// had the tokenizer's files.
Result<WriteReport> Convert(const ConvertOptions& options, const WriteProgress& progress = {});

}  // namespace tandem
