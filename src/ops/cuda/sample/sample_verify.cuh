// SampleVerification: the ratio rule for one sequence by a team of blocks. Each warp sums a range
// of tokens; then the leader's first warp finds the range that the draw falls in, the part of that
// range, and the token. Sums are in double and in a fixed order. Lives in the registers of a
// kernel.
#pragma once

#include "ops/cuda/sample/sample_team.cuh"
#include "ops/noise.h"
#include "ops/sample_rules.h"
#include "ops/sampling.h"

namespace tandem::ops::cuda {

// Sums of each warp's range, read by the team's leader.
struct VerifyShared {
  double target[kSampleWarps];    // of p
  double residual[kSampleWarps];  // of max(p - q, 0)
};

class SampleVerification {
 public:
  __device__ SampleVerification(VerifyShared& shared, const VerifyRow& row, int64_t vocab,
                                int32_t slice_tokens)
      : shared_(shared),
        row_(row),
        vocab_(vocab),
        slice_(slice_tokens),
        num_ranges_(TeamSize() * kSampleWarps),
        lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    const int32_t held = CountHeld();
    p_ = row_.target_probs + held * vocab_;
    const bool subtracts = held < row_.num_draft && !by_threshold();
    q_ = subtracts ? row_.draft_probs + held * vocab_ : nullptr;
    const unsigned rank = TeamRank();
    SumRange(rank * kSampleWarps + threadIdx.x / 32);
    SyncTeam();
    if (rank != 0 || threadIdx.x >= 32) return;
    const int32_t token = Draw(held);
    if (lane_ == 0) {
      *row_.accepted = held;
      *row_.next = token;
    }
  }

 private:
  struct Range {
    int64_t begin;
    int64_t end;
  };
  struct Place {
    int index;      // -1: no part is positive
    double before;  // the sum of the parts before it
  };

  __device__ bool by_threshold() const { return row_.threshold >= 0.0f; }
  // Probabilities come from logits that may hold anything.
  __device__ static float Positive(float value) { return value > 0.0f ? value : 0.0f; }
  __device__ double Weight(int64_t token) const {
    const float p = __ldg(p_ + token);
    return double{q_ == nullptr ? Positive(p) : Positive(p - Positive(__ldg(q_ + token)))};
  }

  // Each warp on its own: the number of accepted drafts.
  __device__ int32_t CountHeld() const {
    const SamplingParams& params = row_.slot->params;
    for (int32_t first = 0; first < row_.num_draft; first += 32) {
      const int32_t i = first + static_cast<int32_t>(lane_);
      bool holds = true;
      if (i < row_.num_draft) {
        const int64_t token = row_.draft[i];
        holds = token >= 0 && token < vocab_;
        if (holds) {
          const float p = Positive(row_.target_probs[i * vocab_ + token]);
          if (by_threshold()) {
            holds = p >= row_.threshold;
          } else {
            const float q = Positive(row_.draft_probs[i * vocab_ + token]);
            const float u =
                UniformNoise(params.seed, params.choice, row_.position + i, AcceptStream(row_));
            holds = u * q < p;
          }
        }
      }
      const unsigned refused = ~__ballot_sync(kAllLanes, holds);
      if (refused != 0) return first + __ffs(static_cast<int>(refused)) - 1;
    }
    return row_.num_draft;
  }

  // The tokens of a warp: the block's slice in equal pieces.
  __device__ Range RangeOf(unsigned index) const {
    const int64_t piece = CeilDiv(slice_, kSampleWarps);
    const int64_t slice = int64_t{index / kSampleWarps} * slice_;
    const int64_t end = min(slice + slice_, vocab_);
    const int64_t begin = min(slice + index % kSampleWarps * piece, end);
    return {begin, min(begin + piece, end)};
  }

  __device__ void SumRange(unsigned index) {
    const Range range = RangeOf(index);
    double target = 0.0;
    double residual = 0.0;
#pragma unroll 4
    for (int64_t token = range.begin + lane_; token < range.end; token += 32) {
      const float p = __ldg(p_ + token);
      target += double{Positive(p)};
      if (q_ != nullptr) residual += double{Positive(p - Positive(__ldg(q_ + token)))};
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      target += __shfl_xor_sync(kAllLanes, target, step);
      residual += __shfl_xor_sync(kAllLanes, residual, step);
    }
    if (lane_ == 0) {
      shared_.target[index % kSampleWarps] = target;
      shared_.residual[index % kSampleWarps] = residual;
    }
  }

  // The token at which the running sum of weights passes a uniform part of their total; 0 if no
  // weight is positive.
  __device__ int32_t Draw(int32_t held) {
    double total = q_ == nullptr ? 0.0 : TotalOf(shared_.residual);
    if (!(total > 0.0)) {  // a draw from p, or p and q differ only by rounding
      q_ = nullptr;
      total = TotalOf(shared_.target);
    }
    const SamplingParams& params = row_.slot->params;
    const double uniform =
        UniformDouble(ResidualStream(row_), params.seed, params.choice, row_.position + held);
    const double wanted = uniform * total;

    double* const sums = q_ == nullptr ? shared_.target : shared_.residual;
    Place place{-1, 0.0};
    double before = 0.0;
    for (unsigned first = 0; first < num_ranges_; first += 32) {
      const unsigned index = first + lane_;
      const double sum = index < num_ranges_ ? SumOf(sums, index) : 0.0;
      if (Find(sum, wanted, static_cast<int>(first), before, place)) break;
    }
    if (place.index < 0) return 0;

    const Range range = RangeOf(static_cast<unsigned>(place.index));
    const int64_t part = CeilDiv(range.end - range.begin, 32);
    const int64_t begin = min(range.begin + lane_ * part, range.end);
    const int64_t end = min(begin + part, range.end);
    double sum = 0.0;
    for (int64_t token = begin; token < end; ++token) sum += Weight(token);
    before = place.before;
    place = {-1, before};
    Find(sum, wanted, 0, before, place);

    // One lane's tokens; every lane walks them and gets the same result.
    const int64_t first = range.begin + place.index * part;
    const int64_t behind = min(first + part, range.end);
    double rest = wanted - place.before;
    int64_t drawn = 0;
    for (int64_t token = first; token < behind; ++token) {
      const double weight = Weight(token);
      if (!(weight > 0.0)) continue;
      drawn = token;  // the last that can be drawn, if rounding left a small remainder
      rest -= weight;
      if (rest < 0.0) break;
    }
    return static_cast<int32_t>(drawn);
  }

  // One sum per lane, added to `before`, which grows by all of them. If the running sum passes
  // `wanted`, sets `place` to that lane (counted from `first`) and returns true; else sets it to
  // the last positive lane, if any.
  __device__ bool Find(double sum, double wanted, int first, double& before, Place& place) const {
    double upper = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double other = __shfl_up_sync(kAllLanes, upper, step);
      if (lane_ >= static_cast<unsigned>(step)) upper += other;
    }
    upper += before;
    double lower = __shfl_up_sync(kAllLanes, upper, 1);
    if (lane_ == 0) lower = before;
    const unsigned positive = __ballot_sync(kAllLanes, sum > 0.0);
    const unsigned passing = __ballot_sync(kAllLanes, upper > wanted) & positive;
    before = __shfl_sync(kAllLanes, upper, 31);
    if (positive == 0) return false;
    const int lane = passing != 0 ? __ffs(static_cast<int>(passing)) - 1
                                  : 31 - __clz(static_cast<int>(positive));
    place = {first + lane, __shfl_sync(kAllLanes, lower, lane)};
    return passing != 0;
  }

  __device__ static double SumOf(double* sums, unsigned index) {
    return *OfTeam(index / kSampleWarps, sums + index % kSampleWarps);
  }
  __device__ double TotalOf(double* sums) const {
    double total = 0.0;
    for (unsigned index = lane_; index < num_ranges_; index += 32) total += SumOf(sums, index);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
    return total;
  }

  VerifyShared& shared_;
  const VerifyRow& row_;
  const int64_t vocab_;
  const int64_t slice_;
  const unsigned num_ranges_;
  const unsigned lane_;
  const float* p_ = nullptr;
  const float* q_ = nullptr;
};

}  // namespace tandem::ops::cuda
