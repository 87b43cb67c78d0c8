// The rules of sampling that every backend follows to the bit: a row's context, its filters, and
// the arithmetic of one logit. Pure functions of the row, for CPU and GPU.
#pragma once

#include <cstdint>

#include "ops/noise.h"
#include "ops/portable_math.h"
#include "ops/sampling.h"

namespace tandem::ops {

// Lower scores than this have a probability below 1e-34 of the likeliest token's: taken as zero.
constexpr float kMinScore = -80.0f;
constexpr float kMinTemperature = 1e-6f;  // keeps 1 / temperature finite; far into greedy

// How a logit becomes a score, log-probability up to a constant: 0 for the largest logit, which
// must be finite. Scores below `floor` do not count.
struct ScoreMap {
  float max = 0.0f;
  float inverse_temperature = 1.0f;
  float floor = kMinScore;
};

// The tokens before the row's draw: the history, then the row's drafts.
class SampleContext {
 public:
  TANDEM_HOST_DEVICE explicit SampleContext(const SampleRow& row) : row_(row) {}
  TANDEM_HOST_DEVICE int32_t size() const { return row_.history.num_tokens + row_.num_ahead; }
  TANDEM_HOST_DEVICE int32_t num_output() const { return size() - row_.history.prompt_tokens; }
  TANDEM_HOST_DEVICE int32_t operator[](int32_t i) const {
    const int32_t known = row_.history.num_tokens;
    return i < known ? row_.history.tokens[i] : row_.ahead[i - known];
  }
  // Whether the last `count` tokens are these.
  TANDEM_HOST_DEVICE bool EndsWith(const int32_t* tokens, int32_t count) const {
    if (count > size()) return false;
    for (int32_t i = count - 1; i >= 0; --i) {
      if ((*this)[size() - count + i] != tokens[i]) return false;
    }
    return true;
  }
  // Whether the `count` tokens before `at` are also the last ones. count <= at < size()
  TANDEM_HOST_DEVICE bool Repeats(int32_t at, int32_t count) const {
    for (int32_t i = 1; i <= count; ++i) {
      if ((*this)[at - i] != (*this)[size() - i]) return false;
    }
    return true;
  }

 private:
  const SampleRow& row_;
};

TANDEM_HOST_DEVICE inline bool HasPenalty(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

TANDEM_HOST_DEVICE inline bool BansEndIds(const SampleRow& row) {
  return row.slot->num_end_ids > 0 && SampleContext(row).num_output() < row.slot->params.min_tokens;
}

// False if the raw logits can be drawn from as they are.
TANDEM_HOST_DEVICE inline bool ChangesLogits(const SampleRow& row) {
  const SlotSampling& slot = *row.slot;
  return row.allowed != nullptr || HasPenalty(slot.params) ||
         slot.params.no_repeat_ngram_size > 0 || slot.num_bias > 0 || slot.num_bans > 0 ||
         BansEndIds(row);
}

// The logit of a token that was seen `count` times.
TANDEM_HOST_DEVICE inline float Penalised(float logit, int32_t count,
                                          const SamplingParams& params) {
  const float repeated =
      logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  return repeated -
         (params.presence_penalty + params.frequency_penalty * static_cast<float>(count));
}

TANDEM_HOST_DEVICE inline bool IsAllowed(const uint32_t* allowed, int64_t token) {
  return allowed == nullptr || (allowed[token / 32] >> (token % 32) & 1u) != 0;
}

// top_p after this many output tokens since the last reset. Multiplied out rather than raised to a
// power, so that every device computes the same bits.
TANDEM_HOST_DEVICE inline float DecayedTopP(const SamplingParams& params, int32_t since_reset) {
  float top_p = params.top_p;
  for (int32_t i = 0; i < since_reset; ++i) {
    top_p *= params.top_p_decay;
    if (!(top_p > params.top_p_min)) return params.top_p_min;
  }
  return top_p;
}

// The score below which min_p drops a token: p < min_p * largest p.
TANDEM_HOST_DEVICE inline float MinPFloor(float min_p) {
  if (!(min_p > 1e-30f)) return kMinScore;
  if (min_p >= 1.0f) return 0.0f;
  const float floor = PortableLog(min_p);
  return floor > kMinScore ? floor : kMinScore;
}

TANDEM_HOST_DEVICE inline NoiseStream AcceptStream(const VerifyRow& row) {
  return row.sent != 0 ? NoiseStream::kSentAccept : NoiseStream::kAccept;
}
TANDEM_HOST_DEVICE inline NoiseStream ResidualStream(const VerifyRow& row) {
  return row.sent != 0 ? NoiseStream::kSentResidual : NoiseStream::kResidual;
}

TANDEM_HOST_DEVICE inline ScoreMap DrawScores(const SamplingParams& params, float max) {
  const float temperature =
      params.temperature > kMinTemperature ? params.temperature : kMinTemperature;
  return {max, 1.0f / temperature, MinPFloor(params.min_p)};
}

}  // namespace tandem::ops
