// A checkpoint folder in TensorRT-LLM's layout: config.json and one rankN.safetensors per
// tensor-parallel rank of each stage. The reader merges them (ShardedSource); the writer streams
// one tensor at a time. docs/formats/checkpoint.md describes both. Used by one thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "checkpoint/trtllm/config.h"
#include "checkpoint/trtllm/sharded_source.h"

namespace tandem {

Result<std::unique_ptr<ShardedSource>> OpenCheckpoint(const std::filesystem::path& folder);

// Called after each tensor with the share done in [0, 1]. An error ends the work with it.
using WriteProgress = std::function<Status(double)>;

// Writes rank files and, last, config.json into `folder`, which must exist. Holds at most two
// tensors in memory.
Status WriteCheckpoint(WeightSource& source, const Sharding& sharding,
                       const std::filesystem::path& folder, const WriteProgress& progress = {});

// Calls `write` with every tensor of every file in order; `begin_file` before and `end_file` after
// the tensors of each. Shared by the checkpoint and engine writers.
struct ShardSink {
  std::function<Status(int64_t file, const std::vector<FusedTensor>& tensors)> begin_file;
  std::function<Status(const FusedTensor& info, const Tensor& tensor)> write;
  std::function<Status()> end_file;
};
Status WriteShards(WeightSource& source, const Sharding& sharding, const ShardSink& sink,
                   const WriteProgress& progress = {});

}  // namespace tandem
