// How the quantized weights of a warp's rows come to shared memory and are multiplied, for products
// with few tokens (linear_streaming_quantized.cu): a policy for each way in which weights lie in
// memory. Every lane copies the pieces that it multiplies itself.
#pragma once

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/linear_fragments.cuh"
#include "ops/cuda/streaming_rows.h"

namespace tandem::ops::cuda {

// What a warp multiplies in one step.
template <typename W, int kRowTiles>
struct WeightStep {
  uint4 pieces[2 * kRowTiles][32];
};
template <int kScales, int kRowTiles>
struct WeightStep<Int4<kScales>, kRowTiles> {
  static constexpr int kScalePieces = 4 * kScales;  // of a tile
  static constexpr int kZeroPieces = 2 * kScales;
  static constexpr int kFactorPieces = kScalePieces + kZeroPieces;

  uint4 pieces[kRowTiles][32];
  uint4 factors[kRowTiles][kFactorPieces];
};

// What a policy for W does: how a warp's weights come to its part of shared memory, a step after
// another, and are multiplied. Aim says where the next steps to copy are; Begin and then Next, for
// each step after Wait and Multiply, copy one more. Wait waits for kSteps steps, of which Multiply
// takes the first or, with later = 1, the second. kWhole: no step passes the last column.
// kRingSteps: on the way at a time.
template <typename W, int kRowTiles, int kRingSteps, bool kWhole, Results kResults>
class WarpWeights;

// The steps of a ring that takes a warp's share of what is on the way in a block.
template <typename W, int kRowTiles>
constexpr int kDeepRing = StreamingBlockBytes(16 * kRowTiles) / kSegments /
                          static_cast<int>(sizeof(WeightStep<W, kRowTiles>));

template <int kRingSteps>
__device__ inline int PlaceAfter(int place, int later) {
  return place + later < kRingSteps ? place + later : place + later - kRingSteps;
}

// Bytes, row by row: a lane copies its two rows of each tile itself.
template <typename W, int kRowTiles, int kRingSteps, bool kWhole, Results kResults>
  requires kIsByte<W>
class WarpWeights<W, kRowTiles, kRingSteps, kWhole, kResults> {
  using Step = WeightStep<W, kRowTiles>;

 public:
  static constexpr int kBlocksPerSm = kWhole ? StreamingBlocksPerSm(16 * kRowTiles) : 2;
  struct Ring {
    Step steps[kRingSteps];
  };
  __device__ WarpWeights(Ring& ring, int lane) : ring_(ring), lane_(lane) {}

  // The rows from first_row on, from column `begin` on.
  __device__ void Aim(const LinearArgs& args, int first_row, int begin) {
    left_ = args.cols - begin - lane_ % 4 * kLaneCols<W>;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = TileRow<kResults>(args, first_row, tile, half, lane_ / 4);
        next_[tile][half] = static_cast<const W*>(args.weight) +
                            static_cast<int64_t>(row) * args.pitch + begin +
                            lane_ % 4 * kLaneCols<W>;
      }
    }
  }
  // more(step): aims where a step comes from, and says whether there is one.
  template <typename More>
  __device__ void Begin(const More& more) {
    place_ = 0;
#pragma unroll
    for (int step = 0; step < kRingSteps; ++step) {
      if (more(step)) CopyNext(ring_.steps[step]);
      CommitCopies();
    }
  }
  template <int kSteps>
  __device__ void Wait() const {
    WaitForCopies<kRingSteps - kSteps>();
  }
  template <typename T, int kTokenTiles>
  __device__ void Multiply(int later, const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                           float (&sums)[kRowTiles][kTokenTiles][4]) const {
    const Step& step = ring_.steps[PlaceAfter<kRingSteps>(place_, later)];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackWeights<W>(step.pieces[2 * tile][lane_], low);
      UnpackWeights<W>(step.pieces[2 * tile + 1][lane_], high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyStep<T, W>(sums[tile][tokens], low, high, x[tokens]);
      }
    }
  }
  __device__ void Next(bool more) {
    if (more) CopyNext(ring_.steps[place_]);
    CommitCopies();
    if (++place_ == kRingSteps) place_ = 0;
  }

 private:
  // Zeros after the last column.
  __device__ void CopyNext(Step& step) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        CopyPiece(SharedAddress(&step.pieces[2 * tile + half][lane_]), next_[tile][half],
                  kWhole || left_ > 0);
        next_[tile][half] += kStepCols<W>;
      }
    }
    if constexpr (!kWhole) left_ -= kStepCols<W>;
  }

  Ring& ring_;
  const int lane_;
  int place_;  // of the step in the ring
  int left_;   // columns
  const W* next_[kRowTiles][2];
};

// Tiles of 4 bits, with their scales and zero points: these are few, and each is copied by one lane
// for all.
template <int kScales, int kRowTiles, int kRingSteps, bool kWhole, Results kResults>
class WarpWeights<Int4<kScales>, kRowTiles, kRingSteps, kWhole, kResults> {
  using W = Int4<kScales>;
  using Step = WeightStep<W, kRowTiles>;
  static constexpr int kFactorPieces = Step::kFactorPieces;
  static_assert(kRowTiles * kFactorPieces <= 32, "a lane copies one");
  static_assert(!kInPairs<kResults> || kRowTiles % 2 == 0, "tiles of both of a pair take turns");

 public:
  static constexpr int kBlocksPerSm = kRowTiles == 1 ? 3 : 2;
  struct Ring {
    Step steps[kRingSteps];
  };

  __device__ WarpWeights(Ring& ring, int lane) : ring_(ring), lane_(lane) {}

  __device__ void Aim(const LinearArgs& args, int first_row, int begin) {
    unit_ = begin / kUnitCols;
    group_shift_ = args.group_shift;
    has_zeros_ = args.group_zeros != nullptr;
    const auto tile_of = [&](int tile) {
      return static_cast<int64_t>(Int4Tile<kResults>(args, first_row, tile));
    };
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      pieces_[tile] =
          static_cast<const uint4*>(args.weight) + tile_of(tile) * UnitsOf(args) * 32 + lane_;
    }
    const int64_t group = tile_of(min(lane_ / kFactorPieces, kRowTiles - 1)) * args.groups;
    const int factor = lane_ % kFactorPieces;
    const bool is_zero = factor >= Step::kScalePieces;
    factors_ = is_zero ? reinterpret_cast<const uint4*>(args.group_zeros) + group * 2 +
                             (factor - Step::kScalePieces)
                       : reinterpret_cast<const uint4*>(args.group_scales) + group * 4 + factor;
    factor_stride_ = is_zero ? Step::kZeroPieces : Step::kScalePieces;
    copies_factor_ = lane_ < kRowTiles * kFactorPieces && (!is_zero || has_zeros_);
    // Or the compiler would compute each of them again for every step.
#pragma unroll
    for (auto& pieces : pieces_) asm volatile("" : "+l"(pieces));
    asm volatile("" : "+l"(factors_), "+r"(copies_factor_));
  }
  template <typename More>
  __device__ void Begin(const More& more) {
    place_ = 0;
#pragma unroll
    for (int step = 0; step < kRingSteps; ++step) {
      if (more(step)) CopyNext(ring_.steps[step]);
      CommitCopies();
    }
  }
  template <int kSteps>
  __device__ void Wait() const {
    WaitForCopies<kRingSteps - kSteps>();
    __syncwarp();  // other lanes copied factors
  }
  template <typename T, int kTokenTiles>
  __device__ void Multiply(int later, const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                           float (&sums)[kRowTiles][kTokenTiles][4]) const {
    const Step& step = ring_.steps[PlaceAfter<kRingSteps>(place_, later)];
    const int row = lane_ / 4;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const auto* const factors = reinterpret_cast<const float2*>(step.factors[tile]);
      const auto* const zeros = reinterpret_cast<const uint32_t*>(factors + 8 * kScales);
      float2 scales[kScales];
#pragma unroll
      for (int i = 0; i < kScales; ++i) scales[i] = factors[8 * i + row];
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackTile<T, W>(
          step.pieces[tile][lane_],
          [&](int i) { return has_zeros_ ? zeros[8 * i + row] : kMiddleZeros<T>; }, low, high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyUnit<T, W>(sums[tile][tokens], low, high, x[tokens],
                           [&](int i) { return scales[i]; });
      }
    }
  }
  __device__ void Next(bool more) {
    __syncwarp();  // all have read the step
    if (more) CopyNext(ring_.steps[place_]);
    CommitCopies();
    if (++place_ == kRingSteps) place_ = 0;
  }

 private:
  __device__ void CopyNext(Step& step) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      CopyPiece(SharedAddress(&step.pieces[tile][lane_]), pieces_[tile] + unit_ * 32, true);
    }
    // The units of a group find its factors in the L1 cache.
    CopyCachedPiece(SharedAddress(&step.factors[0][0] + lane_),
                    factors_ + (unit_ >> group_shift_) * factor_stride_, copies_factor_ != 0);
    ++unit_;
  }

  Ring& ring_;
  const int lane_;
  int unit_;   // the next to copy
  int place_;  // of the step in the ring
  int group_shift_;
  bool has_zeros_;
  const uint4* pieces_[kRowTiles];
  const uint4* factors_;
  int factor_stride_;  // from one group to the next; of 32 columns: two groups
  int copies_factor_;  // whether this lane copies one
};

}  // namespace tandem::ops::cuda
