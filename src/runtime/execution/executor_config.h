// The settings and parts an executor is made with. Plain values.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "comm/communicator.h"
#include "model/prompt_rules.h"
#include "ops/ops.h"
#include "runtime/cache/model_index.h"
#include "runtime/execution/forward_pass.h"
#include "runtime/execution/host_blocks.h"
#include "runtime/scheduling/step_limits.h"
#include "tensor/buffer.h"

namespace tandem {

struct ExecutorConfig : StepLimits {
  int32_t max_seq_len = 0;
  int32_t block_tokens = 0;
  int32_t lookup_ngram = 0;
  bool draft_forced = false;  // on the host, by token match
  bool ratio_acceptance = false;
  bool takes_logits = false;  // to clients and from them
  // How long a step waits for the masks of constrained sequences while it has others to go on with.
  // Most masks take some 20 us, and hardly any 2 ms.
  Nanos mask_patience = std::chrono::milliseconds(5);
  // The same where it has no others, and for drafts that a client sent. New requests wait so long.
  Nanos long_mask_patience = std::chrono::milliseconds(50);
  // The host reads the state of the sequences in place: the backend's memory is the host's, and its
  // work is done when a call returns.
  bool on_host = false;
  std::array<RowForm, kNumModels> row_forms = {};

  int32_t MaxBlocks() const { return (max_seq_len + block_tokens - 1) / block_tokens; }
};

struct ExecutorModels {
  std::unique_ptr<ForwardPass> target;
  std::unique_ptr<ForwardPass> draft;  // may be null
  ops::KvPool target_pool;
  ops::KvPool draft_pool;
  std::vector<Buffer> memory;               // of the pools
  std::unique_ptr<HostBlocks> host_blocks;  // null: what is evicted is lost
  // Of the ranks, where the models are split over several, for what the first one's host decides.
  // Null: there is one. Outlives the executor.
  Communicator* ranks = nullptr;
};

}  // namespace tandem
