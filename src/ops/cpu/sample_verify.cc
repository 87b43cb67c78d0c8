// Ratio acceptance: speculative sampling after Leviathan (arXiv 2211.17192) and Chen (2302.01318).
#include <algorithm>

#include "base/check.h"
#include "ops/cpu/sample.h"
#include "ops/noise.h"
#include "ops/sample_rules.h"

namespace tandem::ops {
namespace {

// Probabilities come from logits that may hold anything: a value that is not a positive number
// counts as zero.
float Positive(float value) { return value > 0.0f ? value : 0.0f; }

// The sum of value(i) over [0, count).
template <typename Value>
double SumOf(int64_t count, Value value) {
  constexpr int64_t kLanes = 8;  // independent sums: one addition per cycle instead of one in four
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += double{value(i + lane)};
  }
  for (; i < count; ++i) lanes[0] += double{value(i)};
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double Sum(const float* values, int64_t count) {
  return SumOf(count, [&](int64_t i) { return Positive(values[i]); });
}

// The token at which the running sum of weights (not normalised) passes `uniform` of their total;
// token 0 when nothing is positive.
int32_t DrawByWeight(const float* weights, int64_t vocab, double total, double uniform) {
  constexpr int64_t kBlock = 256;
  double rest = uniform * total;
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, vocab);
    const double block = Sum(weights + begin, end - begin);
    if (block < rest) {
      rest -= block;
      continue;
    }
    for (int64_t i = begin; i < end; ++i) {
      rest -= double{Positive(weights[i])};
      if (rest < 0.0) return static_cast<int32_t>(i);
    }
  }
  // Rounding left a small remainder: the last token that can be drawn.
  for (int64_t i = vocab - 1; i > 0; --i) {
    if (weights[i] > 0.0f) return static_cast<int32_t>(i);
  }
  return 0;
}

// p := max(p - q, 0). Unchanged if nothing would remain: then p and q differ only by rounding.
void SubtractProbs(float* p, const float* q, int64_t vocab) {
  const auto rest = [&](int64_t i) { return Positive(p[i] - Positive(q[i])); };
  if (!(SumOf(vocab, rest) > 0.0)) return;
  for (int64_t i = 0; i < vocab; ++i) p[i] = rest(i);
}

void VerifySequence(const VerifyRow& row, int64_t vocab) {
  TANDEM_CHECK(row.num_draft >= 0, "drafts or none");
  const uint64_t seed = row.slot->params.seed;
  const uint32_t choice = row.slot->params.choice;
  const bool by_threshold = row.threshold >= 0.0f;
  int32_t held = 0;
  for (; held < row.num_draft; ++held) {
    const int64_t token = row.draft[held];
    if (token < 0 || token >= vocab) break;
    const float p = Positive(row.target_probs[held * vocab + token]);
    if (by_threshold) {
      if (p < row.threshold) break;
      continue;
    }
    const float q = Positive(row.draft_probs[held * vocab + token]);
    const float u = UniformNoise(seed, choice, row.position + held, AcceptStream(row));
    if (!(u * q < p)) break;
  }
  float* weights = row.target_probs + held * vocab;
  if (held < row.num_draft && !by_threshold) {
    SubtractProbs(weights, row.draft_probs + held * vocab, vocab);
  }
  const double uniform = UniformDouble(ResidualStream(row), seed, choice, row.position + held);
  *row.next = DrawByWeight(weights, vocab, Sum(weights, vocab), uniform);
  *row.accepted = held;
}

}  // namespace

void CpuSampler::VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) {
  TANDEM_CHECK(vocab > 0, "a vocabulary");
  for (const VerifyRow& row : rows) {
    if (row.slot != nullptr) VerifySequence(row, vocab);
  }
}

}  // namespace tandem::ops
