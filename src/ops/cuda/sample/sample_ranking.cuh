// SampleRanking: orders a row's tokens as the filters keep them, best score first and of equal
// scores the lower token, without sorting. A token's position is one number: its score's bits,
// followed by its id. The last position that is kept is found with histograms of positions: first
// by score, then over the interval that the border fell in, until one token is left or all of an
// interval are kept. Exact: weights are summed as integers. Lives in the registers of a kernel.
#pragma once

#include "ops/cuda/sample/sample_team.cuh"
#include "ops/sample_rules.h"

namespace tandem::ops::cuda {

constexpr uint64_t kKeepAll = ~uint64_t{0};  // as the last position kept

class SampleRanking {
 public:
  // slice: [count] logits of the tokens from `begin` on.
  __device__ SampleRanking(SampleTeam& team, const float* slice, int32_t begin, int32_t count,
                           int64_t vocab, const ScoreMap& map)
      : team_(team),
        slice_(slice),
        begin_(begin),
        count_(count),
        map_(map),
        token_bits_(BitsOf(vocab)),
        one_(PowerOfTwo(62 - token_bits_)) {}

  // f(score, token, position) of this thread's tokens with scores at or above the floor, in
  // ascending order of tokens.
  template <typename F>
  __device__ void ForEach(F f) const {
#pragma unroll 1  // more would not fit in 64 registers
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count_; i += kSampleThreads) {
      const float score = (slice_[i] - map_.max) * map_.inverse_temperature;
      if (!(score >= map_.floor)) continue;
      const uint64_t key = __float_as_uint(score) & 0x7fffffffu;  // no score is above 0
      f(score, begin_ + i, key << token_bits_ | static_cast<uint32_t>(begin_ + i));
    }
  }

  // The weight exp(score) as an integer, and the sum over the positions up to `last`. The unit is
  // so small that the sum of a whole vocabulary stays below 2^63.
  __device__ uint64_t MassOf(float score) const {
    return score >= kMinScore ? __float2ull_rn(PortableExp(score) * one_) : 0;
  }
  __device__ uint64_t TotalMass(uint64_t last) {
    uint64_t mass = 0;
    ForEach([&](float score, int32_t, uint64_t position) {
      if (position <= last) mass += MassOf(score);
    });
    return team_.Sum(mass);
  }
  // In multiples of the best token's weight.
  __device__ double WeightOf(uint64_t mass) const {
    return static_cast<double>(mass) / static_cast<double>(one_);
  }

  // The last position of the `count` best tokens, or kKeepAll if there are not more.
  __device__ uint64_t LastOfBest(uint64_t count) { return Last<false>(kKeepAll, count, 0.0); }
  // Among the tokens up to `within`, the last position of the shortest run of best tokens that
  // reaches this part of their mass; at least one token.
  __device__ uint64_t LastOfNucleus(uint64_t within, float top_p) {
    return Last<true>(within, 0, double{top_p});
  }

 private:
  static constexpr int kBins = SampleHistogram::kBins;
  static constexpr int kBinBits = 9;
  static_assert(kBins == 1 << kBinBits);
  // The first histogram's bins are 1/16 wide, a power of two, so that their borders are exact; the
  // last bin takes all lower scores.
  static constexpr float kBinsPerUnit = 16.0f;

  __device__ static int BitsOf(int64_t value) { return 64 - __clzll(value); }
  __device__ static float PowerOfTwo(int exponent) {
    return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
  }

  __device__ uint64_t FirstOfBin(uint64_t bin) const {
    const float magnitude = static_cast<float>(bin) * (1.0f / kBinsPerUnit);
    return uint64_t{__float_as_uint(magnitude)} << token_bits_;
  }

  template <bool kByMass>
  __device__ uint64_t Last(uint64_t within, uint64_t target, double part) {
    SampleShared& shared = team_.shared();
    uint64_t first = 0;
    uint64_t last = within;
    int shift = -1;  // bins of scores at first
    team_.Sync();    // others may still read the previous call's
    Clear(shared.histograms[0]);
    Clear(shared.histograms[1]);
    __syncthreads();
    for (int turn = 0;; turn ^= 1) {
      SampleHistogram& histogram = shared.histograms[turn];
      ForEach([&](float score, int32_t, uint64_t position) {
        if (position < first || position > last) return;
        const auto bin = shift < 0
                             ? static_cast<uint32_t>(fminf(-score * kBinsPerUnit, kBins - 1.0f))
                             : static_cast<uint32_t>((position - first) >> shift);
        atomicAdd(&histogram.counts[bin], 1u);
        if constexpr (kByMass) AddMass(histogram, bin, MassOf(score));
      });
      team_.Sync();
      // Other threads read this until they reach this barrier; it is filled again after the scan's
      // barrier.
      Clear(shared.histograms[turn ^ 1]);
      Scan<kByMass>(histogram, target, part, shift < 0);
      if (shared.found_bin < 0) return within;  // fewer than asked for
      const auto bin = static_cast<uint64_t>(shared.found_bin);
      const uint64_t count = shared.found_count;
      target -= shared.found_before;
      if (shift < 0) {
        first = FirstOfBin(bin);
        if (bin + 1 < kBins) last = min(last, FirstOfBin(bin + 1) - 1);
      } else {
        first += bin << shift;
        last = min(last, first + ((uint64_t{1} << shift) - 1));
      }
      if (count == 1 || (!kByMass && target == count)) return last;
      const int bits = BitsOf(static_cast<int64_t>(last - first));
      shift = bits > kBinBits ? bits - kBinBits : 0;
    }
  }

  __device__ static void Clear(SampleHistogram& histogram) {
    histogram.counts[threadIdx.x] = 0;
    histogram.mass_low[threadIdx.x] = 0;
    histogram.mass_high[threadIdx.x] = 0;
  }

  __device__ static void AddMass(SampleHistogram& histogram, uint32_t bin, uint64_t mass) {
    const auto low = static_cast<uint32_t>(mass);
    const uint32_t before = atomicAdd(&histogram.mass_low[bin], low);
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + (before + low < before ? 1u : 0u);
    if (high != 0) atomicAdd(&histogram.mass_high[bin], high);
  }

  // Sets found_... to the bin of the whole team's histogram where the running sum reaches the
  // target; each block computes it. In the first call the target is a part of the whole mass.
  template <bool kByMass>
  __device__ void Scan(SampleHistogram& mine, uint64_t& target, double part, bool is_first) {
    SampleShared& shared = team_.shared();
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    if (threadIdx.x == 0) shared.found_bin = -1;
    uint64_t count = 0;
    uint64_t mass = 0;
    for (int rank = 0; rank < team_.size(); ++rank) {
      const SampleHistogram& histogram = *team_.Of(rank, &mine);
      count += histogram.counts[threadIdx.x];
      if constexpr (kByMass) {
        mass += uint64_t{histogram.mass_high[threadIdx.x]} << 32;
        mass += histogram.mass_low[threadIdx.x];
      }
    }
    const uint64_t amount = kByMass ? mass : count;
    uint64_t sum = amount;  // of the bins up to this one
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= static_cast<unsigned>(step)) sum += other;
    }
    if (lane == 31) shared.scan[warp] = sum;
    __syncthreads();
    uint64_t total = 0;
    for (unsigned i = 0; i < kSampleWarps; ++i) {
      if (i < warp) sum += shared.scan[i];
      total += shared.scan[i];
    }
    if (kByMass && is_first) {
      const double wanted = ceil(part * static_cast<double>(total));
      target = wanted > 1.0 ? static_cast<uint64_t>(wanted) : 1;
    }
    if (sum - amount < target && target <= sum) {
      shared.found_before = sum - amount;
      shared.found_count = count;
      shared.found_bin = static_cast<int32_t>(threadIdx.x);
    }
    __syncthreads();
  }

  SampleTeam& team_;
  const float* const slice_;
  const int32_t begin_;
  const int32_t count_;
  const ScoreMap map_;
  const int token_bits_;
  const float one_;  // 2^(62 - token_bits): the mass of the best token
};

}  // namespace tandem::ops::cuda
