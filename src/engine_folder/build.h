// `tandem build`: a checkpoint (or a Hugging Face folder) becomes an engine folder: config.json
// {version, pretrained_config, build_config} and one checksummed rankN.engine per tensor-parallel
// rank, with the tokenizer's files. docs/formats/engine.md. Runs on the caller's thread.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/trtllm_checkpoint.h"

namespace tandem {

// What an engine was built for; the engine that runs it stays within these.
struct BuildLimits {
  int64_t max_batch_size = 2048;
  int64_t max_input_len = 1024;
  int64_t max_seq_len = 0;  // 0: what the model was trained for
  int64_t max_num_tokens = 8192;
  int64_t max_beam_width = 1;
  int64_t max_draft_len = 0;
  bool operator==(const BuildLimits&) const = default;
};

// Fills in max_seq_len and lowers what exceeds it; refuses by name what cannot be.
Result<BuildLimits> SettleLimits(BuildLimits limits, const ModelSpec& spec);

struct BuildOptions {
  std::filesystem::path checkpoint_dir;
  std::filesystem::path output_dir;
  BuildLimits limits = {};
  // none, draft_tokens_external: only recorded, because any engine can be given a draft here.
  std::string speculative_decoding_mode = "none";
  // Options that mattered only to TensorRT's compiler, as given: "gemm_plugin" is "auto".
  std::map<std::string, std::string> recorded = {};
};

struct BuildReport {
  ModelSpec spec;
  BuildLimits limits;
  int64_t tp_size = 1;
  int64_t bytes_written = 0;
};

Result<BuildReport> Build(const BuildOptions& options, const WriteProgress& progress = {});

// An engine folder as read back.
struct EngineFolder {
  std::unique_ptr<ShardedSource> source;
  BuildLimits limits;
  std::string version;  // of the program that built it
};
Result<EngineFolder> OpenEngine(const std::filesystem::path& folder);

}  // namespace tandem
