// A request's sampling parameters, and the result of a draw: plain data that a device can hold. It
// travels from the wire formats to the device and back, so every layer in between sees it.
// Semantics follow TensorRT-LLM's executor: penalties see prompt + output and act before the
// temperature; then min-p, top-k and top-p in this order (renormalized in between).
#pragma once

#include <cstdint>
#include <limits>

#include "base/host_device.h"

namespace tandem {

// Constant while the sequence runs. The initial values have no effect on a draw.
struct SamplingParams {
  float temperature = 1.0f;  // 0 means greedy
  int32_t top_k = 0;         // 0 or -1 means all; 1 means greedy
  float top_p = 1.0f;        // 1 means all
  float top_p_min = 1e-6f;   // p_t = max(top_p * decay^t, min); back to top_p after reset_id
  float top_p_decay = 1.0f;
  int32_t top_p_reset_id = -1;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // divides positive, multiplies negative logits of seen tokens
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t no_repeat_ngram_size = 0;  // 0 means off
  int32_t min_tokens = 0;            // end ids are banned for this many output tokens
  int32_t num_top_logprobs = -1;     // -1: none; 0: the sampled token's; n: also the best n (<= 20)
  uint64_t seed = 0;
  uint32_t choice = 0;  // index among the n choices of a request: part of the noise key

  // True when the draw is an arg-max: no noise is involved.
  TANDEM_HOST_DEVICE bool greedy() const { return temperature <= 0.0f || top_k == 1; }
};

constexpr int kMaxTopLogprobs = 20;
constexpr float kMinLogprob = -9999.0f;  // what OpenAI reports for an impossible token

// The result of a draw. Log-probabilities are of the raw logits (log-softmax), whatever the
// filters; always finite, at least kMinLogprob.
struct SampledToken {
  int32_t token = 0;
  float logprob = std::numeric_limits<float>::quiet_NaN();  // set when num_top_logprobs >= 0
  int32_t num_top = 0;
  int32_t top_ids[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];

  SampledToken() = default;
  // Copies only the entries that are set: most tokens have no alternatives, although there is room
  // for 160 bytes.
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

}  // namespace tandem
