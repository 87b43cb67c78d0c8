// Sampling written from its definition: slow, clear, in double where the outcome allows. For tests
// only: every backend's Sample must agree with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/noise.h"
#include "ops/sampling.h"
#include "ops/testing/sampling_memory.h"

namespace tandem::ops {

// A row and the data it points to, owned.
struct OwnedRow {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;
  std::vector<int32_t> ahead;
  std::vector<int32_t> end_ids;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias_values;
  std::vector<std::vector<int32_t>> bans;
  std::vector<uint32_t> allowed;  // empty: all

  int64_t vocab() const { return static_cast<int64_t>(logits.size()); }

  // The row in a backend's memory.
  SampleRow Place(SamplingMemory& memory) const {
    std::vector<int32_t> history = prompt;
    history.insert(history.end(), output.begin(), output.end());
    std::vector<int32_t> counts(logits.size());
    for (const int32_t token : history) {
      if (token >= 0 && token < vocab()) ++counts[static_cast<size_t>(token)];
    }
    std::vector<int32_t> ban_tokens;
    std::vector<int32_t> ban_ends;
    for (const std::vector<int32_t>& ban : bans) {
      ban_tokens.insert(ban_tokens.end(), ban.begin(), ban.end());
      ban_ends.push_back(static_cast<int32_t>(ban_tokens.size()));
    }
    const SlotSampling slot = {.params = params,
                               .end_ids = memory.Put(end_ids),
                               .num_end_ids = static_cast<int32_t>(end_ids.size()),
                               .bias_ids = memory.Put(bias_ids),
                               .bias_values = memory.Put(bias_values),
                               .num_bias = static_cast<int32_t>(bias_ids.size()),
                               .ban_tokens = memory.Put(ban_tokens),
                               .ban_ends = memory.Put(ban_ends),
                               .num_bans = static_cast<int32_t>(ban_ends.size())};
    SampleRow row;
    row.logits = memory.Put(logits);
    row.slot = memory.Put(std::span(&slot, 1));
    row.history = {memory.Put(history), static_cast<int32_t>(history.size()),
                   static_cast<int32_t>(prompt.size()), memory.Put(counts)};
    row.ahead = memory.Put(ahead);
    row.num_ahead = static_cast<int32_t>(ahead.size());
    row.allowed = memory.Put(allowed);
    return row;
  }
};

struct ReferenceDraw {
  int32_t token = -1;            // -1: nothing may be drawn
  std::vector<double> probs;     // the law of the draw
  std::vector<double> logprobs;  // of the raw logits
};

inline std::vector<int32_t> ReferenceContext(const OwnedRow& row) {
  std::vector<int32_t> context = row.prompt;
  context.insert(context.end(), row.output.begin(), row.output.end());
  context.insert(context.end(), row.ahead.begin(), row.ahead.end());
  return context;
}

inline std::vector<float> ReferenceProcessed(const OwnedRow& row) {
  constexpr float kBanned = -std::numeric_limits<float>::infinity();
  const SamplingParams& params = row.params;
  const std::vector<int32_t> context = ReferenceContext(row);
  std::vector<float> logits = row.logits;
  const auto ban = [&](int32_t token) {
    if (token >= 0 && token < row.vocab()) logits[static_cast<size_t>(token)] = kBanned;
  };
  for (size_t token = 0; token < logits.size(); ++token) {
    const auto count = std::count(context.begin(), context.end(), static_cast<int32_t>(token));
    if (count == 0) continue;
    float& logit = logits[token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
  const size_t ngram = static_cast<size_t>(params.no_repeat_ngram_size);
  for (size_t i = 0; ngram > 0 && i + ngram <= context.size(); ++i) {
    if (std::equal(context.end() - static_cast<ptrdiff_t>(ngram - 1), context.end(),
                   context.begin() + static_cast<ptrdiff_t>(i))) {
      ban(context[i + ngram - 1]);
    }
  }
  for (size_t i = 0; i < row.bias_ids.size(); ++i) {
    if (row.bias_ids[i] >= 0 && row.bias_ids[i] < row.vocab()) {
      logits[static_cast<size_t>(row.bias_ids[i])] += row.bias_values[i];
    }
  }
  const auto outputs = static_cast<int32_t>(row.output.size() + row.ahead.size());
  if (outputs < params.min_tokens) {
    for (const int32_t end_id : row.end_ids) ban(end_id);
  }
  for (const std::vector<int32_t>& sequence : row.bans) {
    if (sequence.empty() || sequence.size() - 1 > context.size()) continue;
    if (std::equal(sequence.begin(), sequence.end() - 1,
                   context.end() - static_cast<ptrdiff_t>(sequence.size() - 1))) {
      ban(sequence.back());
    }
  }
  for (size_t token = 0; !row.allowed.empty() && token < logits.size(); ++token) {
    if ((row.allowed[token / 32] >> (token % 32) & 1u) == 0) logits[token] = kBanned;
  }
  return logits;
}

inline double ReferenceTopP(const OwnedRow& row) {
  const SamplingParams& params = row.params;
  std::vector<int32_t> outputs = row.output;
  outputs.insert(outputs.end(), row.ahead.begin(), row.ahead.end());
  float top_p = params.top_p;
  for (const int32_t token : outputs) {
    top_p = token == params.top_p_reset_id ? params.top_p
                                           : std::max(top_p * params.top_p_decay, params.top_p_min);
  }
  return params.top_p_decay == 1.0f ? params.top_p : top_p;
}

inline std::vector<double> ReferenceLogprobs(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  std::vector<double> out;
  for (const float logit : logits) out.push_back(double{logit} - max - std::log(sum));
  return out;
}

// For finite logits.
inline ReferenceDraw ReferenceSample(const OwnedRow& row) {
  const SamplingParams& params = row.params;
  const std::vector<float> logits = ReferenceProcessed(row);
  ReferenceDraw draw;
  draw.probs.assign(logits.size(), 0.0);
  draw.logprobs = ReferenceLogprobs(row.logits);
  const auto likeliest = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (std::isinf(*likeliest)) return draw;
  draw.token = static_cast<int32_t>(likeliest - logits.begin());
  if (params.greedy()) {
    draw.probs[static_cast<size_t>(draw.token)] = 1.0;
    return draw;
  }

  const float inverse_temperature = 1.0f / params.temperature;
  std::vector<float> scores;  // as floats: ties and the draw itself depend on them
  for (const float logit : logits) scores.push_back((logit - *likeliest) * inverse_temperature);
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  const auto weight = [&](int32_t token) {
    return std::exp(double{scores[static_cast<size_t>(token)]});
  };
  size_t kept = 0;
  while (kept < order.size() && weight(order[kept]) >= double{params.min_p} &&
         weight(order[kept]) > 1e-34) {
    ++kept;
  }
  if (params.top_k > 0) kept = std::min(kept, static_cast<size_t>(params.top_k));
  const auto mass = [&](size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; ++i) sum += weight(order[i]);
    return sum;
  };
  const double top_p = ReferenceTopP(row);
  if (top_p < 1.0) {
    const double enough = top_p * mass(kept);
    double sum = 0.0;
    size_t nucleus = 0;
    do {
      sum += weight(order[nucleus++]);
    } while (nucleus < kept && sum < enough);
    kept = nucleus;
  }

  const double total = mass(kept);
  const auto position = static_cast<int32_t>(ReferenceContext(row).size());
  float best = -std::numeric_limits<float>::infinity();
  std::sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept));
  for (size_t i = 0; i < kept; ++i) {
    const int32_t token = order[i];
    draw.probs[static_cast<size_t>(token)] = weight(token) / total;
    const float noisy = scores[static_cast<size_t>(token)] +
                        GumbelNoise(params.seed, params.choice, position, token);
    if (noisy > best) {
      best = noisy;
      draw.token = token;
    }
  }
  return draw;
}

}  // namespace tandem::ops
