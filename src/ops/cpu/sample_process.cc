#include "ops/cpu/sample_process.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/vector_clones.h"
#include "ops/sample_rules.h"

namespace tandem::ops {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

void Ban(int32_t token, int64_t vocab, float* logits) {
  if (token >= 0 && token < vocab) logits[token] = kBanned;
}

// Only seen tokens change, and few tokens of a vocabulary are seen: whole groups are skipped.
void PenaliseHistory(const SampleRow& row, int64_t vocab, float* logits) {
  constexpr int64_t kGroup = 16;
  uint64_t pairs[kGroup / 2];  // of counts
  const int32_t* counts = row.history.counts;
  TANDEM_CHECK(counts != nullptr, "a penalty needs the slot's token counts");
  for (int64_t begin = 0; begin < vocab; begin += kGroup) {
    const int64_t end = std::min(begin + kGroup, vocab);
    if (end - begin == kGroup) {
      std::memcpy(pairs, counts + begin, sizeof(pairs));
      uint64_t any = 0;
      for (const uint64_t pair : pairs) any |= pair;
      if (any == 0) continue;
    }
    for (int64_t i = begin; i < end; ++i) {
      if (counts[i] > 0) logits[i] = Penalised(logits[i], counts[i], row.slot->params);
    }
  }
}

// Penalties of tokens among the drafts are computed again from their raw logits. The counts stay
// untouched: other rows of the sequence are read by other threads.
void PenaliseAhead(const SampleRow& row, int64_t vocab, float* logits) {
  const int32_t* ahead = row.ahead;
  for (int32_t i = 0; i < row.num_ahead; ++i) {
    const int32_t token = ahead[i];
    if (token < 0 || token >= vocab) continue;
    const auto extra = std::count(ahead, ahead + row.num_ahead, token);
    const int32_t count = row.history.counts[token] + static_cast<int32_t>(extra);
    logits[token] = Penalised(row.logits[token], count, row.slot->params);
  }
}

// Bans the token that followed each earlier occurrence of the last size - 1 tokens.
void BanRepeatedNgrams(const SampleRow& row, int64_t vocab, float* logits) {
  const SampleContext context(row);
  const int32_t prefix = row.slot->params.no_repeat_ngram_size - 1;
  for (int32_t next = prefix; next < context.size(); ++next) {
    if (context.Repeats(next, prefix)) Ban(context[next], vocab, logits);
  }
}

void AddBias(const SlotSampling& slot, int64_t vocab, float* logits) {
  for (int32_t i = 0; i < slot.num_bias; ++i) {
    const int32_t token = slot.bias_ids[i];
    if (token >= 0 && token < vocab) logits[token] += slot.bias_values[i];
  }
}

// Bans the last token of each sequence whose other tokens were just seen.
void BanSequences(const SampleRow& row, int64_t vocab, float* logits) {
  const SlotSampling& slot = *row.slot;
  const SampleContext context(row);
  int32_t begin = 0;
  for (int32_t i = 0; i < slot.num_bans; ++i) {
    const int32_t end = slot.ban_ends[i];
    const int32_t before = end - begin - 1;
    if (before >= 0 && context.EndsWith(slot.ban_tokens + begin, before)) {
      Ban(slot.ban_tokens[end - 1], vocab, logits);
    }
    begin = end;
  }
}

// Without a branch for each token: a mask that bars half of the tokens does so at random places.
TANDEM_VECTOR_CLONES
void ApplyMask(const uint32_t* allowed, int64_t vocab, float* logits) {
  using Lanes = int32_t __attribute__((vector_size(64)));
  constexpr Lanes kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  constexpr int64_t kFloats = kVectorFloats;
  int64_t begin = 0;
  for (; begin + kFloats <= vocab; begin += kFloats) {
    const auto bits = static_cast<int32_t>(allowed[begin / 32] >> (begin % 32) & 0xffffu);
    if (bits == 0xffff) continue;
    FloatX16 values;
    LoadVector(logits + begin, values);
    values = ((Lanes{} + bits) >> kLane & 1) != 0 ? values : FloatX16{} + kBanned;
    StoreVector(logits + begin, values);
  }
  for (; begin < vocab; ++begin) {
    if (!IsAllowed(allowed, begin)) logits[begin] = kBanned;
  }
}

// The largest raw logit among the allowed tokens; if none is above minus infinity (or all are NaN),
// the first allowed token; -1 when none is allowed.
int32_t LikeliestAllowed(const SampleRow& row, const uint32_t* allowed, int64_t vocab) {
  int32_t best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < vocab; ++i) {
    if (!IsAllowed(allowed, i)) continue;
    if (best < 0 || row.logits[i] > best_logit) {
      best = static_cast<int32_t>(i);
      if (row.logits[i] > best_logit) best_logit = row.logits[i];
    }
  }
  return best;
}

}  // namespace

void ProcessLogits(const SampleRow& row, int64_t vocab, float* out) {
  const SlotSampling& slot = *row.slot;
  std::memcpy(out, row.logits, static_cast<size_t>(vocab) * sizeof(float));
  if (HasPenalty(slot.params)) {
    PenaliseHistory(row, vocab, out);
    PenaliseAhead(row, vocab, out);
  }
  if (slot.params.no_repeat_ngram_size > 0) BanRepeatedNgrams(row, vocab, out);
  AddBias(slot, vocab, out);
  if (BansEndIds(row)) {
    for (int32_t i = 0; i < slot.num_end_ids; ++i) Ban(slot.end_ids[i], vocab, out);
  }
  BanSequences(row, vocab, out);
  if (row.allowed != nullptr) ApplyMask(row.allowed, vocab, out);
}

float EffectiveTopP(const SampleRow& row) {
  const SamplingParams& params = row.slot->params;
  if (params.top_p_decay == 1.0f) return params.top_p;
  const SampleContext context(row);
  int32_t since_reset = 0;
  while (since_reset < context.num_output() &&
         context[context.size() - 1 - since_reset] != params.top_p_reset_id) {
    ++since_reset;
  }
  return DecayedTopP(params, since_reset);
}

int32_t FallbackToken(const SampleRow& row, int64_t vocab) {
  if (row.allowed != nullptr) {
    const int32_t token = LikeliestAllowed(row, row.allowed, vocab);
    if (token >= 0) return token;
  }
  const SlotSampling& slot = *row.slot;
  if (slot.num_end_ids > 0 && slot.end_ids[0] >= 0 && slot.end_ids[0] < vocab) {
    return slot.end_ids[0];
  }
  return std::max(LikeliestAllowed(row, nullptr, vocab), 0);
}

}  // namespace tandem::ops
