// StepLimits: the largest step, and how many there may be at once: what the scheduler plans for and
// the executor has room for. A plain value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

struct StepLimits {
  int32_t max_batch_size = 0;   // slots
  int32_t max_num_tokens = 0;   // rows of a target pass, and of a draft pass
  int32_t max_logits_rows = 0;  // rows to sample from; at least max_batch_size
  int32_t max_draft_len = 0;    // 0: no drafts
  int32_t max_sent_drafts = 0;  // drafts of a request that one step verifies
  int32_t max_launched = 1;     // steps that may be launched before the first one's results arrive

  int32_t MaxDrafts() const { return std::max(max_draft_len, max_sent_drafts); }
  // A step's drafts from clients, with a row more for each request.
  int32_t MaxSentRows() const { return max_sent_drafts > 0 ? max_sent_drafts + 1 : 0; }

  // The most window blocks that sequences hold at once where a token sees `window_tokens` tokens,
  // itself among them; 0 if that is 0. More would be a CHECK.
  int64_t MaxWindowBlocks(int64_t window_tokens, int32_t block_tokens) const;
  // The most window blocks that change their owner between two plans: new ones, and those that the
  // tree takes over. More would be a CHECK.
  int32_t MaxMappings(int32_t block_tokens) const;
};

}  // namespace tandem
