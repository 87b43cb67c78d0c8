// `tandem build`: a checkpoint (or a Hugging Face folder) becomes an engine folder: config.json
// {version, pretrained_config, build_config} and one checksummed rankN.engine per tensor-parallel
// rank, with the tokenizer's files. docs/formats/engine.md. Runs on the caller's thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/trtllm/checkpoint.h"
#include "engine_folder/engine_config.h"
#include "model/config_options.h"

namespace tandem {

struct BuildOptions {
  std::filesystem::path checkpoint_dir;
  std::filesystem::path output_dir;
  ConfigOptions config = {};  // of a Hugging Face folder
  BuildLimits limits = {};
  // none, draft_tokens_external: only recorded, because any engine can be given a draft here.
  std::string speculative_decoding_mode = "none";
  // Options that mattered only to TensorRT's compiler, as given: "gemm_plugin" is "auto".
  std::map<std::string, std::string> recorded = {};
};

struct BuildReport {
  ModelSpec spec;
  BuildLimits limits;
  Sharding sharding;
  int64_t bytes_written = 0;
};

Result<BuildReport> Build(const BuildOptions& options, const WriteProgress& progress = {});

}  // namespace tandem
