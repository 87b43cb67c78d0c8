// SlotInit: the initial contents of a slot, as values only, so that it can be sent to another rank
// together with the plan. Filled by the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling.h"
#include "runtime/cache/kv_cache.h"
#include "runtime/request/prompt_layouts.h"
#include "runtime/request/request.h"

namespace tandem {

// Reused for each sequence, to keep its memory.
struct SlotInit {
  int32_t prompt_tokens = 0;
  int32_t max_length = 0;          // of prompt + output: a slot that reaches it has ended
  ComputedLengths computed{0, 0};  // from the prefix tree
  PromptLayouts layouts = {};
  SamplingParams sampling;      // with the seed and choice of this sequence
  std::vector<int32_t> tokens;  // the prompt; after a preemption also the output so far
  bool constrained = false;     // tokens are drawn under the masks of a constraint

  // The lists of the request, one after the other: end ids; tokens with a bias, then the bits of
  // the biases; the tokens of the banned sequences, then where each of these sequences ends.
  std::vector<int32_t> lists;
  int32_t num_end_ids = 0;
  int32_t num_bias = 0;
  int32_t num_ban_tokens = 0;
  int32_t num_bans = 0;

  // Drafts that the client sent, to be verified with the first token, how, and the logits sent with
  // them: the request's own, used until RemoveSequence.
  std::vector<int32_t> sent_drafts;
  bool sent_by_probability = false;  // else by token match
  float sent_threshold = -1.0f;      // negative: by the ratio rule
  std::span<const float> sent_logits;

  void SetLists(const Request& request);
  // The first `count` drafts of the request.
  void SetSent(const Request& request, int32_t count);
};

}  // namespace tandem
