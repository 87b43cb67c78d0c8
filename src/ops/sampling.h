// The sampling ops' view of a sequence: plain data that a device can hold, one record per slot,
// written by the executor when a sequence takes its slot and read by Sample and VerifyAndAccept.
#pragma once

#include <cstdint>

#include "base/sampling.h"

namespace tandem::ops {

// A slot's sampling record: parameters and views of the slot's own lists (backend memory).
struct SlotSampling {
  SamplingParams params;
  const int32_t* end_ids = nullptr;  // [num_end_ids], banned before min_tokens
  int32_t num_end_ids = 0;
  const int32_t* bias_ids = nullptr;  // [num_bias] tokens and what is added to their logits
  const float* bias_values = nullptr;
  int32_t num_bias = 0;
  // Banned token sequences, back to back: sequence i is ban_tokens[ban_ends[i-1] .. ban_ends[i]).
  const int32_t* ban_tokens = nullptr;
  const int32_t* ban_ends = nullptr;  // [num_bans]
  int32_t num_bans = 0;
};

// A slot's history: the tokens plain decoding has seen so far. Device-resident, written by Sample's
// caller.
struct SlotHistory {
  const int32_t* tokens = nullptr;  // [num_tokens]: prompt, then output
  int32_t num_tokens = 0;
  int32_t prompt_tokens = 0;
  int32_t* counts = nullptr;  // [vocab] occurrences in tokens; null when no penalty needs them.
                              // An op may overlay drafts on it while it runs and restores it.
};

// One row to draw from: the logits that follow the slot's history and `num_ahead` drafts after it.
struct SampleRow {
  const float* logits = nullptr;  // [vocab] raw, left untouched; null: an inert row, token -1
  const SlotSampling* slot = nullptr;
  SlotHistory history;
  const int32_t* ahead = nullptr;  // [num_ahead] drafts already proposed after the history
  int32_t num_ahead = 0;
  const uint32_t* allowed = nullptr;  // [vocab / 32] bit set = may be drawn; null = all may
  // The distribution the draw was made from, after every filter; null when not wanted. Greedy rows
  // get a one at the arg-max.
  float* probs = nullptr;  // [vocab]
  // Not negative: no draw; this token was chosen by ratio acceptance and only its log-probabilities
  // are wanted.
  int32_t given = -1;
};

// One sequence whose drafts are tested by their probabilities.
struct VerifyRow {
  const SlotSampling* slot = nullptr;  // null: an inert row, nothing is read or written
  int32_t position = 0;                // of the first draft
  int32_t sent = 0;                    // 1: the drafts are a client's, with noise of their own
  // Negative: the ratio rule. Else drafts are accepted while the target's probability is at least
  // this, and draft_probs is not read.
  float threshold = -1.0f;
  const int32_t* draft = nullptr;  // [num_draft] tokens drawn from draft_probs
  int32_t num_draft = 0;
  const float* draft_probs = nullptr;  // [num_draft, vocab]
  float* target_probs = nullptr;       // [num_draft + 1, vocab] after every filter; then scratch
  int32_t* accepted = nullptr;         // set to the number of accepted drafts
  int32_t* next = nullptr;             // set to the token after them
};

}  // namespace tandem::ops
