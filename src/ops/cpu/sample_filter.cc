#include "ops/cpu/sample_filter.h"

#include <algorithm>
#include <array>
#include <limits>

namespace tandem::ops {
namespace {

constexpr size_t kManyCandidates = 1024;

// Moves the candidates whose score interval holds the border of the nucleus to [begin, end) and the
// better ones before it; returns the mass still needed from there. Takes three passes, where
// selection among all candidates would compare and swap each of them several times.
double NarrowByHistogram(std::span<Candidate> candidates, double mass, size_t& begin, size_t& end) {
  constexpr int kIntervals = 1024;
  float lowest = 0.0f;
  for (const Candidate& candidate : candidates) lowest = std::min(lowest, candidate.score);
  const float scale = lowest < 0.0f ? (kIntervals - 1) / lowest : 0.0f;
  const auto interval = [&](float score) { return static_cast<int>(score * scale); };
  std::array<double, kIntervals> masses{};
  for (const Candidate& candidate : candidates) {
    masses[static_cast<size_t>(interval(candidate.score))] += double{candidate.weight};
  }
  const int last = interval(lowest);  // not empty: rounding must not carry the border past it
  int border = 0;
  while (border < last && masses[static_cast<size_t>(border)] < mass) {
    mass -= masses[static_cast<size_t>(border++)];
  }
  const auto inside = std::partition(candidates.begin(), candidates.end(), [&](const Candidate& c) {
    return interval(c.score) < border;
  });
  const auto behind = std::partition(
      inside, candidates.end(), [&](const Candidate& c) { return interval(c.score) == border; });
  begin = static_cast<size_t>(inside - candidates.begin());
  end = static_cast<size_t>(behind - candidates.begin());
  return mass;
}

// Number of candidates to keep: at least `begin` + 1, at most `end`, and enough that those from
// `begin` on reach `mass`. A quickselect by weight: halves the range until it is small.
size_t BorderBySelection(std::span<Candidate> candidates, double mass, size_t begin, size_t end) {
  constexpr size_t kSmall = 32;
  const auto at = [&](size_t i) { return candidates.begin() + static_cast<ptrdiff_t>(i); };
  while (end - begin > kSmall) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(at(begin), at(middle), at(end), IsBetter);
    const double upper = TotalWeight(candidates.subspan(begin, middle - begin));
    if (upper >= mass) {
      end = middle;
    } else {
      mass -= upper;
      begin = middle;
    }
  }
  std::sort(at(begin), at(end), IsBetter);
  size_t kept = begin;
  do {
    mass -= double{candidates[kept++].weight};
  } while (kept < end && mass > 0.0);
  return kept;
}

}  // namespace

std::span<Candidate> TopK(const SampleKernels& kernels, const float* logits, int64_t vocab,
                          ScoreMap map, int64_t k, Candidate* out) {
  constexpr int64_t kChunk = 128;  // small: the floor rises early, and few candidates are written
  const int64_t full = std::min(2 * k + kChunk, vocab);  // when to keep only the k best so far
  int64_t found = 0;
  for (int64_t first = 0; first < vocab; first += kChunk) {
    const int64_t count = std::min(kChunk, vocab - first);
    found += kernels.gather(logits, first, count, map, out + found);
    const bool last = first + count == vocab;
    if (found <= k || (found < full && !last)) continue;
    std::nth_element(out, out + k - 1, out + found, IsBetter);
    found = k;
    map.floor = out[k - 1].score;
  }
  return {out, static_cast<size_t>(found)};
}

std::span<Candidate> NucleusCandidates(const SampleKernels& kernels, const float* logits,
                                       int64_t vocab, ScoreMap map, double total, float top_p,
                                       Candidate* out) {
  // `vocab` tokens below this score weigh less than half of the mass that the nucleus leaves out.
  const double tail = 0.5 * (1.0 - double{top_p}) * total / static_cast<double>(vocab);
  if (tail > std::numeric_limits<float>::min()) {
    const float tail_score = PortableLog(static_cast<float>(std::min(tail, 1.0)));
    map.floor = std::max(map.floor, tail_score);
  }
  const int64_t found = kernels.gather(logits, 0, vocab, map, out);
  return {out, static_cast<size_t>(found)};
}

std::span<Candidate> KeepMass(std::span<Candidate> candidates, double mass) {
  size_t begin = 0;
  size_t end = candidates.size();
  if (candidates.size() >= kManyCandidates) mass = NarrowByHistogram(candidates, mass, begin, end);
  return candidates.first(BorderBySelection(candidates, mass, begin, end));
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
