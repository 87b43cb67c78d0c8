#include "ops/cpu/sample_filter.h"

#include <algorithm>
#include <limits>

namespace tandem::ops {
namespace {

bool Better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

}  // namespace

float MinPFloor(float min_p) {
  if (!(min_p > 1e-30f)) return kMinScore;
  return min_p >= 1.0f ? 0.0f : std::max(PortableLog(min_p), kMinScore);
}

std::span<Candidate> TopK(const SampleKernels& kernels, const float* logits, int64_t vocab,
                          ScoreMap map, int64_t k, Candidate* out) {
  constexpr int64_t kChunk = 1024;
  const int64_t full = std::min(2 * k + kChunk, vocab);  // when to drop all but the k best so far
  int64_t found = 0;
  for (int64_t first = 0; first < vocab; first += kChunk) {
    const int64_t count = std::min(kChunk, vocab - first);
    found += kernels.gather(logits, first, count, map, out + found);
    const bool last = first + count == vocab;
    if (found <= k || (found < full && !last)) continue;
    std::nth_element(out, out + k - 1, out + found, Better);
    found = k;
    map.floor = out[k - 1].score;
  }
  return {out, static_cast<size_t>(found)};
}

std::span<Candidate> NucleusCandidates(const SampleKernels& kernels, const float* logits,
                                       int64_t vocab, ScoreMap map, double total, float top_p,
                                       Candidate* out) {
  // `vocab` tokens below this score weigh less than half of what the nucleus leaves out.
  const double tail = 0.5 * (1.0 - double{top_p}) * total / static_cast<double>(vocab);
  if (tail > std::numeric_limits<float>::min()) {
    const float tail_score = PortableLog(static_cast<float>(std::min(tail, 1.0)));
    map.floor = std::max(map.floor, tail_score);
  }
  const int64_t found = kernels.gather(logits, 0, vocab, map, out);
  return {out, static_cast<size_t>(found)};
}

// A quick-select by weight: halves the range that holds the border until it is small.
std::span<Candidate> KeepMass(std::span<Candidate> candidates, double mass) {
  constexpr size_t kSmall = 32;
  size_t begin = 0;  // candidates before it are kept; the border lies in [begin, end]
  size_t end = candidates.size();
  while (end - begin > kSmall) {
    const size_t middle = begin + (end - begin) / 2;
    const auto first = candidates.begin();
    std::nth_element(first + static_cast<ptrdiff_t>(begin), first + static_cast<ptrdiff_t>(middle),
                     first + static_cast<ptrdiff_t>(end), Better);
    const double upper = TotalWeight(candidates.subspan(begin, middle - begin));
    if (upper >= mass) {
      end = middle;
    } else {
      mass -= upper;
      begin = middle;
    }
  }
  std::sort(candidates.begin() + static_cast<ptrdiff_t>(begin),
            candidates.begin() + static_cast<ptrdiff_t>(end), Better);
  size_t kept = begin;
  do {
    mass -= double{candidates[kept].weight};
    ++kept;
  } while (kept < end && mass > 0.0);
  return candidates.first(kept);
}

double TotalWeight(std::span<const Candidate> candidates) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += double{candidate.weight};
  return total;
}

int32_t DrawCandidate(std::span<const Candidate> candidates, NoiseKey key) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t best_token = -1;
  for (const Candidate& candidate : candidates) {
    const uint32_t bits = NoiseBits(key, static_cast<uint32_t>(candidate.token));
    if (candidate.score + GumbelBound<float>(bits) < best) continue;
    const float noisy = candidate.score + GumbelFromBits(bits);
    if (noisy > best || (noisy == best && candidate.token < best_token)) {
      best = noisy;
      best_token = candidate.token;
    }
  }
  return best_token;
}

}  // namespace tandem::ops
