// What the sampling ops need to know of a sequence: plain data that a device can hold, one record a
// slot, written by the executor when a sequence takes its slot and read by Sample and
// VerifyAndAccept. Semantics follow TensorRT-LLM's executor: penalties see prompt + output, and act
// before the temperature; min-p before top-k before top-p (renormalised in between).
#pragma once

#include <cstdint>
#include <limits>

#include "ops/host_device.h"

namespace tandem::ops {

// Set at admission, constant while the sequence holds its slot.
struct SamplingParams {
  float temperature = 1.0f;  // 0 means greedy
  int32_t top_k = 0;         // 0 means all; 1 means greedy
  float top_p = 1.0f;        // 1 means all
  float top_p_min = 1e-6f;   // p_t = max(top_p * decay^t, min); back to top_p after reset_id
  float top_p_decay = 1.0f;
  int32_t top_p_reset_id = -1;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // divides positive, multiplies negative logits of seen tokens
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t no_repeat_ngram_size = 0;  // 0 means off
  int32_t min_tokens = 0;            // end ids are banned for so many output tokens
  int32_t num_top_logprobs = -1;     // -1: none; 0: the sampled token's alone; up to 20 beside it
  uint64_t seed = 0;
  uint32_t choice = 0;  // index among the n choices of a request: part of the noise key

  // True when the draw is an arg-max: no noise is involved.
  TANDEM_HOST_DEVICE bool greedy() const { return temperature <= 0.0f || top_k == 1; }
};

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

// One sequence whose drafts the ratio rule tests.
struct VerifyRow {
  const SlotSampling* slot = nullptr;  // null: an inert row, nothing is read or written
  int32_t position = 0;                // of the first draft
  const int32_t* draft = nullptr;      // [num_draft] tokens drawn from draft_probs
  int32_t num_draft = 0;
  const float* draft_probs = nullptr;  // [num_draft, vocab]
  float* target_probs = nullptr;       // [num_draft + 1, vocab] after every filter; then scratch
  int32_t* accepted = nullptr;         // set to the number of accepted drafts
  int32_t* next = nullptr;             // set to the token after them
};

constexpr int kMaxTopLogprobs = 20;
constexpr float kMinLogprob = -9999.0f;  // what OpenAI reports for an impossible token

// What a draw gives. Log-probabilities are of the raw logits (log-softmax), whatever the filters;
// always finite, at least kMinLogprob.
struct SampledToken {
  int32_t token = 0;
  float logprob = std::numeric_limits<float>::quiet_NaN();  // set when num_top_logprobs >= 0
  int32_t num_top = 0;
  int32_t top_ids[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];

  SampledToken() = default;
  // A copy takes what is set: most tokens have nothing beside them, and room for 160 bytes.
  TANDEM_HOST_DEVICE SampledToken(const SampledToken& other) { *this = other; }
  TANDEM_HOST_DEVICE SampledToken& operator=(const SampledToken& other) {
    if (this == &other) return *this;
    token = other.token;
    logprob = other.logprob;
    num_top = other.num_top;
    for (int32_t i = 0; i < num_top; ++i) {
      top_ids[i] = other.top_ids[i];
      top_logprobs[i] = other.top_logprobs[i];
    }
    return *this;
  }
};

}  // namespace tandem::ops
