// `tandem convert`: a Hugging Face folder becomes a checkpoint in TensorRT-LLM's layout, for one or
// more tensor-parallel ranks. Runs on the caller's thread.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/trtllm_checkpoint.h"

namespace tandem {

struct ConvertOptions {
  std::filesystem::path model_dir;
  std::filesystem::path output_dir;
  // auto, float16, bfloat16, float32. auto keeps the model's type, float32 becoming float16.
  std::string dtype = "auto";
  int64_t tp_size = 1;
  bool parallel_embedding = false;
  int64_t embedding_sharding_dim = 0;
};

struct ConvertReport {
  ModelSpec spec;
  int64_t tp_size = 1;
  int64_t bytes_written = 0;
};

// The folder appears when it is whole; it can be served alone where the tokenizer's files were
// there.
Result<ConvertReport> Convert(const ConvertOptions& options, const WriteProgress& progress = {});

}  // namespace tandem
