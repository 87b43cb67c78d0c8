// How the weights of a warp's rows and its activations come to shared memory, step by step, and are
// multiplied, for products with few tokens (linear_streaming.cu): StepRing, with a policy for each
// way in which weights lie in memory.
#pragma once

#include <cstddef>

#include "ops/cuda/device/async_copy.cuh"
#include "ops/cuda/linear/linear_fragments.cuh"
#include "ops/cuda/linear/streaming_blocks.h"

namespace tandem::ops::cuda {

// The weights that a warp multiplies in one step.
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
// another, and are multiplied. Aim says where the next steps to copy are, Copy copies one to a step
// at this address, Read takes a step that has arrived to registers, and Multiply multiplies it.
// What one lane reads others may have copied. kWhole: no step passes the last column.
template <typename W, int kRowTiles, bool kWhole, Epilogue kEpilogue>
class WarpWeights;

// Elements of 8 or 16 bits, row by row: a lane copies its two rows of each tile itself.
template <typename W, int kRowTiles, bool kWhole, Epilogue kEpilogue>
  requires(!kIsInt4<W>)
class WarpWeights<W, kRowTiles, kWhole, kEpilogue> {
 public:
  using Step = WeightStep<W, kRowTiles>;
  struct Held {
    uint4 pieces[2 * kRowTiles];
  };
  __device__ explicit WarpWeights(int lane) : lane_(lane) {}

  // The rows from first_row on, from column `begin` on.
  __device__ void Aim(const LinearArgs& args, int first_row, int begin) {
    left_ = args.cols - begin - lane_ % 4 * kLaneCols<W>;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = TileRow<kEpilogue>(args, first_row, tile, half, lane_ / 4);
        next_[tile][half] = static_cast<const W*>(args.weight) +
                            static_cast<int64_t>(row) * args.pitch + begin +
                            lane_ % 4 * kLaneCols<W>;
      }
    }
  }
  // Zeros after the last column.
  __device__ void Copy(uint32_t step) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        CopyPiece(step + ((2 * tile + half) * 32 + lane_) * kPieceBytes, next_[tile][half],
                  kWhole || left_ > 0);
        next_[tile][half] += kStepCols<W>;
      }
    }
    if constexpr (!kWhole) left_ -= kStepCols<W>;
  }
  __device__ Held Read(const Step& step) const {
    Held held;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) held.pieces[i] = step.pieces[i][lane_];
    return held;
  }
  template <typename T, int kTokenTiles>
  __device__ void Multiply(const Held& held, const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                           float (&sums)[kRowTiles][kTokenTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackWeights<W>(held.pieces[2 * tile], low);
      UnpackWeights<W>(held.pieces[2 * tile + 1], high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyStep<T, W>(sums[tile][tokens], low, high, x[tokens]);
      }
    }
  }

 private:
  const int lane_;
  int left_;  // columns
  const W* next_[kRowTiles][2];
};

// Tiles of 4 bits, with their scales and zero points: these are few, and each is copied by one lane
// for all.
template <int kScales, int kRowTiles, bool kWhole, Epilogue kEpilogue>
class WarpWeights<Int4<kScales>, kRowTiles, kWhole, kEpilogue> {
  using W = Int4<kScales>;

 public:
  using Step = WeightStep<W, kRowTiles>;
  struct Held {
    uint4 pieces[kRowTiles];
    float2 scales[kRowTiles][kScales];
    uint32_t zeros[kRowTiles][kScales];
  };
  __device__ explicit WarpWeights(int lane) : lane_(lane) {}

  __device__ void Aim(const LinearArgs& args, int first_row, int begin) {
    unit_ = begin / kUnitCols;
    group_shift_ = args.group_shift;
    has_zeros_ = args.group_zeros != nullptr;
    const auto tile_of = [&](int tile) {
      return static_cast<int64_t>(Int4Tile<kEpilogue>(args, first_row, tile));
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
    // Keep these in registers: the compiler would compute them again for every step.
#pragma unroll
    for (auto& pieces : pieces_) asm volatile("" : "+l"(pieces));
    asm volatile("" : "+l"(factors_), "+r"(copies_factor_));
  }
  __device__ void Copy(uint32_t step) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      CopyPiece(step + (tile * 32 + lane_) * kPieceBytes, pieces_[tile] + unit_ * 32, true);
    }
    // The units of a group find its factors in the L1 cache.
    CopyCachedPiece(step + static_cast<uint32_t>(offsetof(Step, factors)) + lane_ * kPieceBytes,
                    factors_ + (unit_ >> group_shift_) * factor_stride_, copies_factor_ != 0);
    ++unit_;
  }
  __device__ Held Read(const Step& step) const {
    const int row = lane_ / 4;
    Held held;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      held.pieces[tile] = step.pieces[tile][lane_];
      const auto* const factors = reinterpret_cast<const float2*>(step.factors[tile]);
      const auto* const zeros = reinterpret_cast<const uint32_t*>(factors + 8 * kScales);
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        held.scales[tile][i] = factors[8 * i + row];
        held.zeros[tile][i] = has_zeros_ ? zeros[8 * i + row] : kNoZeros;
      }
    }
    return held;
  }
  template <typename T, int kTokenTiles>
  __device__ void Multiply(const Held& held, const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                           float (&sums)[kRowTiles][kTokenTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackTile<T, W>(
          held.pieces[tile],
          [&](int i) { return has_zeros_ ? held.zeros[tile][i] : kMiddleZeros<T>; }, low, high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyUnit<T, W>(sums[tile][tokens], low, high, x[tokens],
                           [&](int i) { return held.scales[tile][i]; });
      }
    }
  }

 private:
  static constexpr int kFactorPieces = Step::kFactorPieces;
  static constexpr uint32_t kNoZeros = 0;
  static_assert(kRowTiles * kFactorPieces <= 32, "a lane copies one");
  static_assert(!kInPairs<kEpilogue> || kRowTiles % 2 == 0, "tiles of both of a pair take turns");

  const int lane_;
  int unit_;  // the next to copy
  int group_shift_;
  bool has_zeros_;
  const uint4* pieces_[kRowTiles];
  const uint4* factors_;
  int factor_stride_;  // from one group to the next; of 32 columns: two groups
  int copies_factor_;  // whether this lane copies one
};

// The activations of a step: its columns of each token, in pieces of eight.
template <typename W>
constexpr int kTokenPieces = kStepCols<W> / 8;
template <typename W, int kTokenTiles>
struct ActivationStep {
  uint4 pieces[8 * kTokenTiles][kTokenPieces<W>];
};

// A warp's activations, likewise. They come to shared memory beside the weights, so that the warp
// waits for the oldest step only: in registers it would wait for all that are on the way, because
// the compiler counts their loads together.
template <typename W, int kTokenTiles, bool kWhole>
class WarpActivations {
 public:
  using Step = ActivationStep<W, kTokenTiles>;
  using Held = uint32_t[kTokenTiles][kLaneWords<W>];
  // The tokens of which a lane copies a piece.
  static constexpr int kCopied = 8 * kTokenTiles * kTokenPieces<W> / 32;
  __device__ static int CopiedToken(int lane, int i) { return (32 * i + lane) / kTokenPieces<W>; }

  __device__ explicit WarpActivations(int lane) : lane_(lane) {}

  // From column `begin` on. row_of(i): the row of x of the lane's i-th CopiedToken.
  template <typename RowOf>
  __device__ void Aim(const LinearArgs& args, int begin, const RowOf& row_of) {
    cols_ = args.cols;
    in_pieces_ = HasWholePieces(args);
    are_factors_ = args.x_is_factors;
    tokens_ = args.tokens;
    col_ = begin + 8 * (lane_ % kTokenPieces<W>);
#pragma unroll
    for (int i = 0; i < kCopied; ++i) rows_[i] = row_of(i);
  }
  // Whether rows are in whole pieces, so that Copy takes them; else Store.
  __device__ bool InPieces() const { return kWhole || in_pieces_; }
  // LinearArgs::x_is_factors.
  __device__ bool AreFactors() const { return are_factors_; }
  // Zeros after the last token and the last column.
  __device__ void Copy(uint32_t step) {
#pragma unroll
    for (int i = 0; i < kCopied; ++i) {
      const int token = CopiedToken(lane_, i);
      const int piece = token * kTokenPieces<W> + PlaceOf(token, lane_ % kTokenPieces<W>);
      CopyPiece(step + piece * kPieceBytes, rows_[i] + col_,
                token < tokens_ && (kWhole || col_ < cols_));
    }
    col_ += kStepCols<W>;
  }
  // The same at once.
  __device__ void Store(Step& step) {
#pragma unroll
    for (int i = 0; i < kCopied; ++i) {
      const int token = CopiedToken(lane_, i);
      step.pieces[token][PlaceOf(token, lane_ % kTokenPieces<W>)] =
          LoadUnaligned(rows_[i], col_, cols_);
    }
    col_ += kStepCols<W>;
  }
  __device__ void Read(const Step& step, Held& held) const {
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      const int token = 8 * tile + lane_ / 4;
#pragma unroll
      for (int i = 0; i < kLaneWords<W>; i += 4) {
        const uint4 piece = step.pieces[token][PlaceOf(token, PieceCol<W>(lane_ % 4, i / 4) / 8)];
        held[tile][i] = piece.x;
        held[tile][i + 1] = piece.y;
        held[tile][i + 2] = piece.z;
        held[tile][i + 3] = piece.w;
      }
    }
  }

 private:
  // Where a token's piece lies among its pieces: eight lanes, which read from two tokens, find
  // theirs in different banks.
  __device__ static int PlaceOf(int token, int piece) {
    if constexpr (kIsInt4<W>) return piece ^ (token % 2 * 4 + token / 2 % 4);
    return kIsByte<W> ? piece ^ token % 8 : piece;
  }

  const int lane_;
  int cols_;
  bool in_pieces_;
  bool are_factors_;
  int tokens_;
  int col_;
  const uint16_t* rows_[kCopied];
};

// A step of a warp in shared memory.
template <typename W, int kRowTiles, int kTokenTiles>
struct StreamingStep {
  WeightStep<W, kRowTiles> weights;
  ActivationStep<W, kTokenTiles> activations;
};

// A ring of kSteps steps of a warp. The copies of a step are a group, of the first steps two: one
// of weights and one of activations.
template <typename W, int kRowTiles, int kTokenTiles, int kSteps, bool kWhole, Epilogue kEpilogue>
class StepRing {
  using Step = StreamingStep<W, kRowTiles, kTokenTiles>;

 public:
  using Weights = WarpWeights<W, kRowTiles, kWhole, kEpilogue>;
  using Activations = WarpActivations<W, kTokenTiles, kWhole>;
  struct Memory {
    Step steps[kSteps];
  };

  __device__ StepRing(Memory& memory, int lane)
      : memory_(memory), address_(SharedAddress(&memory)), weights(lane), activations(lane) {}

  // Of the first kSteps steps, of which there are num_steps.
  __device__ void CopyFirstWeights(int num_steps) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step < num_steps) weights.Copy(AddressOf(step));
      CommitCopies();
    }
  }
  __device__ void CopyFirstActivations(int num_steps) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step < num_steps) CopyActivations(step);
      CommitCopies();
    }
  }
  // Both, of steps that more() finds, as in AddProducts.
  template <typename More>
  __device__ void CopyFirst(const More& more) {
    place_ = 0;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) CopyNext(step, more);
  }
  // Adds the products of the next num_steps steps. more(): aims at the next step to copy; false if
  // there is none.
  template <typename T, typename More>
  __device__ __forceinline__ void AddProducts(int num_steps, const More& more,
                                              float (&sums)[kRowTiles][kTokenTiles][4]) {
    int step = 0;
#pragma unroll 1
    for (; step + kAtOnce <= num_steps; step += kAtOnce) Add<T, kAtOnce>(more, sums);
    if (step < num_steps) Add<T, 1>(more, sums);
  }

 private:
  // The products of a unit of 4 bits are a chain of their own: those of two hide each other's
  // latency, where registers allow it.
  static constexpr int kAtOnce = kIsInt4<W> && kTokenTiles == 1 ? 2 : 1;
  // A place is filled again as soon as the step is in registers, where there are enough of them.
  static constexpr bool kCopiesEarly = kRowTiles <= 2;

  __device__ uint32_t AddressOf(int place) const {
    return address_ + place * static_cast<uint32_t>(sizeof(Step));
  }
  __device__ void CopyActivations(int place) {
    if (activations.InPieces()) {
      activations.Copy(AddressOf(place) + static_cast<uint32_t>(offsetof(Step, activations)));
    } else {
      activations.Store(memory_.steps[place].activations);
    }
  }
  template <typename More>
  __device__ void CopyNext(int place, const More& more) {
    if (more()) {
      weights.Copy(AddressOf(place));
      CopyActivations(place);
    }
    CommitCopies();
  }
  __device__ static int Next(int place) { return place + 1 < kSteps ? place + 1 : 0; }
  template <typename T, int kTaken, typename More>
  __device__ __forceinline__ void Add(const More& more, float (&sums)[kRowTiles][kTokenTiles][4]) {
    typename Weights::Held held[kTaken];
    typename Activations::Held x[kTaken];
    WaitForCopies<kSteps - kTaken>();
    __syncwarp();  // those of all lanes have ended
    int place = place_;
#pragma unroll
    for (int i = 0; i < kTaken; ++i, place = Next(place)) {
      held[i] = weights.Read(memory_.steps[place].weights);
      activations.Read(memory_.steps[place].activations, x[i]);
    }
    const auto copy = [&] {
      __syncwarp();  // all have read the steps
#pragma unroll
      for (int i = 0; i < kTaken; ++i, place_ = Next(place_)) CopyNext(place_, more);
    };
    if constexpr (kCopiesEarly) copy();
#pragma unroll
    for (int i = 0; i < kTaken; ++i) {
      if (!activations.AreFactors()) {
#pragma unroll
        for (auto& words : x[i]) ConvertActivations<T, W>(words);
      }
      weights.template Multiply<T>(held[i], x[i], sums);
    }
    if constexpr (!kCopiesEarly) copy();
  }

  Memory& memory_;
  const uint32_t address_;
  int place_ = 0;  // of the next step

 public:
  Weights weights;
  Activations activations;
};

// The most steps of a ring in a warp's share of this many bytes of a block.
template <typename W, int kRowTiles, int kTokenTiles>
constexpr int RingSteps(int bytes) {
  return bytes / kSegments / static_cast<int>(sizeof(StreamingStep<W, kRowTiles, kTokenTiles>));
}

}  // namespace tandem::ops::cuda
