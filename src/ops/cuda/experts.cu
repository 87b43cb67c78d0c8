// Layers of experts. Which experts the rows chose is known on the device alone, so a kernel plans
// the products there: each expert's rows get neighbouring places, and an item is an expert and a
// tile of its places. The products' kernels, those of linear layers, take one item after another;
// they sum in the order that those keep, so that a row's bits do not depend on its tile.
#include <algorithm>
#include <vector>

#include "base/status.h"
#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/linear/linear_args.cuh"
#include "ops/cuda/row_ops.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 128;

constexpr int kPlanThreads = 256;
constexpr int kPlanWarps = kPlanThreads / 32;
// Of a thread.
constexpr int kPlanExperts = kMaxExperts / kPlanThreads;

// The most items that `slots` rows make: each expert has at most one that is not full.
constexpr int64_t MostItems(int64_t slots, int64_t num_experts, int64_t tile) {
  const int64_t used = std::min(slots, num_experts);
  return used + (slots - used) / tile;
}
constexpr int64_t kSmallestTile = 8;
constexpr int64_t kItemsAt = 16;  // bytes of the plan before its items
constexpr int64_t kPlanBytes =
    kItemsAt + MostItems(ExpertPlan::kMaxSlots, kMaxExperts, kSmallestTile) *
                   static_cast<int64_t>(sizeof(ExpertItem));

// Rows of an item. Few rows for each expert stream its weights, more of them go through tiles in
// shared memory.
int64_t TileFor(int64_t rows, int64_t slots, int64_t num_experts) {
  const int64_t mean = slots / num_experts;
  if (rows <= 8 || mean <= 4) return kSmallestTile;
  return mean <= 12 ? kMaxStreamingTokens : kTiledTokens;
}

// The lanes whose slot is of this lane's expert, and the first of them.
struct Peers {
  uint32_t lanes;
  int lane;

  __device__ int Count() const { return __popc(lanes); }
  __device__ int Rank() const { return __popc(lanes & ((1u << lane) - 1)); }
};

// Calls visit(slot, expert, peers) for a warp's slots, 32 at a time, with all lanes; expert -1: the
// slot is past the end or names none.
template <typename Visit>
__device__ void ForSlots(const int32_t* experts, int begin, int end, int num_experts,
                         const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = begin; first < end; first += 32) {
    const int slot = first + lane;
    int expert = slot < end ? experts[slot] : -1;
    if (expert >= num_experts) expert = -1;
    expert = max(expert, -1);
    visit(slot, expert, Peers{__match_any_sync(~0U, expert), lane});
  }
}

// The sum of `value` of the threads before this one.
__device__ int SumBefore(int value, int (&warps)[kPlanWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0U, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  for (int before = 0; before < warp; ++before) sum += warps[before];
  return sum - value;
}

// One block. places: where each slot's row goes, by expert and of one expert in the order of the
// slots; -1 for a slot that names no expert. sources: the row at each place.
__global__ void __launch_bounds__(kPlanThreads)
    PlanKernel(const int32_t* experts, int slots, int chosen, int num_experts, int tile,
               int32_t* places, int32_t* sources, ExpertItem* items, int32_t* num_items) {
  // Of each warp's slots: how many each expert has, and then the next place.
  __shared__ int32_t next[kPlanWarps][kMaxExperts];
  __shared__ int row_sums[kPlanWarps];
  __shared__ int item_sums[kPlanWarps];
  BeginKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  for (int expert = thread; expert < num_experts; expert += kPlanThreads) {
#pragma unroll
    for (auto& of_warp : next) of_warp[expert] = 0;
  }
  __syncthreads();
  const int share = (slots + kPlanThreads - 1) / kPlanThreads * 32;
  const int begin = min(warp * share, slots);
  const int end = min(begin + share, slots);
  ForSlots(experts, begin, end, num_experts, [&](int, int expert, const Peers& peers) {
    if (expert >= 0 && peers.Rank() == 0) next[warp][expert] += peers.Count();
    __syncwarp();
  });
  __syncthreads();
  int rows = 0, tiles = 0;
  const int first_expert = thread * kPlanExperts;
  const auto rows_of = [&](int expert) {
    int sum = 0;
#pragma unroll
    for (const auto& of_warp : next) sum += of_warp[expert];
    return sum;
  };
  for (int expert = first_expert; expert < min(first_expert + kPlanExperts, num_experts);
       ++expert) {
    const int count = rows_of(expert);
    rows += count;
    tiles += (count + tile - 1) / tile;
  }
  int place = SumBefore(rows, row_sums);
  int item = SumBefore(tiles, item_sums);
  for (int expert = first_expert; expert < min(first_expert + kPlanExperts, num_experts);
       ++expert) {
    int at = place;
#pragma unroll
    for (auto& of_warp : next) {
      const int count = of_warp[expert];
      of_warp[expert] = place;
      place += count;
    }
    for (; at < place; at += tile) items[item++] = {expert, at, min(tile, place - at)};
  }
  if (thread == kPlanThreads - 1) *num_items = item;
  __syncthreads();
  ForSlots(experts, begin, end, num_experts, [&](int slot, int expert, const Peers& peers) {
    const int at = expert < 0 ? -1 : next[warp][expert] + peers.Rank();
    __syncwarp();
    if (expert >= 0 && peers.Rank() == 0) next[warp][expert] += peers.Count();
    __syncwarp();
    if (slot < end) places[slot] = at;
    if (at >= 0) sources[at] = slot / chosen;
  });
}

// Rows for the experts, in their places.
template <typename T>
struct GatherJob {
  const T* x;
  const int32_t* places;   // [slots]
  const int32_t* experts;  // [slots]
  const float* scales;     // [slots], or null: what a row is multiplied by first
  const ExpertParts* parts;
  int64_t count;  // of slots
  int64_t cols;
  int chosen;  // slots of a row of x; 0: x's rows are in their places already
  T* out;      // other memory than x
};

// kCount columns a thread; kArranged: as the expert's weight takes them.
template <typename T, int kCount, bool kArranged>
__global__ void __launch_bounds__(kThreads) GatherKernel(const GatherJob<T> job) {
  BeginKernel();
  const int64_t pieces = job.cols / kCount;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < job.count * pieces;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t slot = i / pieces, col = i % pieces * kCount;
    const int64_t place = job.places[slot];
    if (place < 0) continue;
    const T* const row = job.x + (job.chosen == 0 ? place : slot / job.chosen) * job.cols;
    int64_t from = col;
    const float* factors = nullptr;
    if constexpr (kArranged) {
      const ExpertParts& parts = job.parts[job.experts[slot]];
      if (parts.input_order != nullptr) from = parts.input_order[col];
      factors = parts.input_factors;
    }
    Pack<T, kCount> piece = LoadPack<T, kCount>(row + from);
    const auto multiply = [&](float by) {
#pragma unroll
      for (T& value : piece.at) value = FromFloat<T>(ToFloat(value) * by);
    };
    if (job.scales != nullptr) multiply(job.scales[slot]);
    if (kArranged && factors != nullptr) multiply(factors[from]);
    StorePack(job.out + place * job.cols + col, piece);
  }
}

// out = the sums of each row's outputs, times their weights (null: ones), in the order of its
// slots.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    SumKernel(const T* outputs, const int32_t* places, const float* weights, int64_t rows,
              int chosen, int64_t cols, T* out) {
  BeginKernel();
  const int64_t pieces = cols / kCount;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * pieces;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / pieces, col = i % pieces * kCount;
    float sums[kCount] = {};
    // Loads of several outputs at a time, or each would wait for the one before.
    constexpr int kAtOnce = 8;
    for (int first = 0; first < chosen; first += kAtOnce) {
      int64_t at[kAtOnce];
      float factor[kAtOnce];
      Pack<T, kCount> pieces[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const bool real = first + k < chosen;
        const int64_t slot = row * chosen + first + k;
        at[k] = real ? places[slot] : -1;
        factor[k] = real && weights != nullptr ? weights[slot] : 1.0f;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (at[k] >= 0) pieces[k] = LoadPack<T, kCount>(outputs + at[k] * cols + col);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (at[k] < 0) continue;
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
          sums[e] = fmaf(ToFloat(pieces[k].at[e]), factor[k], sums[e]);
        }
      }
    }
    Pack<T, kCount> result;
#pragma unroll
    for (int e = 0; e < kCount; ++e) result.at[e] = FromFloat<T>(sums[e]);
    StorePack(out + row * cols + col, result);
  }
}

// sum += sigmoid(gate) * x
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddGatedKernel(T* sum, const float* gate, const T* x, int64_t count, int64_t cols) {
  BeginKernel();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const float factor = 1.0f / (1.0f + expf(-gate[i / cols]));
    sum[i] = FromFloat<T>(fmaf(ToFloat(x[i]), factor, ToFloat(sum[i])));
  }
}

dim3 BlocksFor(const Context& context, int64_t count) {
  return BlocksOfUnits(context, 32, CeilDiv(count, kThreads));
}

template <typename T>
void Gather(const Context& context, const GatherJob<T>& job, bool arranged) {
  const auto launch = [&]<int kCount, bool kArranged>() {
    LaunchEarly(context, "gathering rows for experts", GatherKernel<T, kCount, kArranged>,
                BlocksFor(context, job.count * job.cols / kCount), kThreads, 0, job);
  };
  if (arranged) {
    launch.template operator()<1, true>();
  } else if (HasPieces(job.cols, job.x, job.out)) {
    launch.template operator()<8, false>();
  } else {
    launch.template operator()<1, false>();
  }
}

void RunProduct(const Context& context, DType activations, const LinearWeight& weight,
                const ExpertProduct& product, bool gated) {
  WithTypes(activations, weight, [&]<typename T, typename W>() {
    if (product.tile > kMaxStreamingTokens) {
      LaunchTiledExperts<T, W>(context, product);
    } else if constexpr (std::is_same_v<T, W>) {
      gated ? LaunchWideExpertsGated<T>(context, product) : LaunchWideExperts<T>(context, product);
    } else {
      gated ? LaunchQuantizedExpertsGated<T, W>(context, product)
            : LaunchQuantizedExperts<T, W>(context, product);
    }
  });
}

ExpertParts PartsOf(const LinearWeight& weight) {
  return {.weight = weight.data.data(),
          .scales = weight.scales.data(),
          .zeros = weight.zeros.data(),
          .bias = weight.bias.As<float>(),
          .input_factors = weight.input_factors.As<float>(),
          .input_order = weight.input_order.As<int32_t>()};
}

}  // namespace

ExpertPlan::ExpertPlan() : memory_(AllocateWorkspace(kPlanBytes, "the plan of experts")) {}
ExpertPlan::~ExpertPlan() { cudaFree(memory_); }
ExpertItem* ExpertPlan::items() const {
  return reinterpret_cast<ExpertItem*>(static_cast<std::byte*>(memory_) + kItemsAt);
}

// The parts of all experts' first products, and then of their second.
Result<Buffer> MakeExpertTable(const Context& context,
                               const std::function<Result<Buffer>(size_t bytes)>& allocate,
                               const ExpertWeights& weights) {
  TANDEM_CHECK(weights.in.size() == weights.down.size(), "two products of each expert");
  std::vector<ExpertParts> parts;
  for (const std::vector<LinearWeight>* product : {&weights.in, &weights.down}) {
    const LinearWeight& first = product->front();
    for (const LinearWeight& weight : *product) {
      TANDEM_CHECK(weight.rows == first.rows && weight.cols == first.cols &&
                       weight.dtype == first.dtype && weight.scheme == first.scheme,
                   "experts of one shape and format");
      parts.push_back(PartsOf(weight));
    }
  }
  const size_t bytes = parts.size() * sizeof(ExpertParts);
  TANDEM_ASSIGN_OR_RETURN(Buffer table, allocate(bytes));
  CheckCuda(
      cudaMemcpyAsync(table.data(), parts.data(), bytes, cudaMemcpyHostToDevice, context.stream),
      "copying the table of experts");
  CheckCuda(cudaStreamSynchronize(context.stream), "copying the table of experts");
  return Result<Buffer>(std::move(table));
}

void CudaOps::Experts(const Tensor& x, const ExpertChoice& choice, const ExpertWeights& weights,
                      const ExpertScratch& scratch, const Tensor& out) {
  const int64_t rows = x.dim(0), chosen = choice.per_token();
  const LinearWeight &in = weights.in.front(), &down = weights.down.front();
  TANDEM_CHECK(chosen <= kMaxExpertsPerToken && weights.in.size() <= kMaxExperts &&
                   weights.in.size() == weights.down.size() && weights.table.data() != nullptr,
               "experts with a table, not more than routing computes with");
  TANDEM_CHECK(
      scratch.order.NumElements() >= 2 * rows * chosen && scratch.outputs.dim(0) == rows * chosen &&
          scratch.inner.dim(0) == rows * chosen && scratch.activated.dim(0) == rows * chosen,
      "the scratch is for another number of rows");
  TANDEM_CHECK(x.dim(1) == in.cols && scratch.inner.dim(1) == in.rows &&
                   scratch.activated.dim(1) == down.cols && out.dim(1) == down.rows &&
                   in.cols == down.rows && scratch.outputs.dim(1) == down.rows,
               "shapes do not fit the weights");
  TANDEM_CHECK(x.dtype == out.dtype && (in.scheme.is_plain() ? in.dtype == x.dtype : true) &&
                   (down.scheme.is_plain() ? down.dtype == x.dtype : true),
               "activations and weights differ in type");
  if (rows == 0) return;
  const int64_t most = ExpertPlan::kMaxSlots / chosen;
  const int64_t piece = CeilDiv(rows, CeilDiv(rows, most));
  for (int64_t first = 0; first < rows; first += piece) {
    const int64_t count = std::min(piece, rows - first);
    const int64_t slots = count * chosen;
    PlannedExperts(x.RowRange(first, count),
                   {choice.experts.RowRange(first, count), choice.weights.RowRange(first, count)},
                   weights,
                   {scratch.order, scratch.inner.RowRange(0, slots),
                    scratch.activated.RowRange(0, slots), scratch.outputs.RowRange(0, slots)},
                   out.RowRange(first, count));
  }
}

void CudaOps::PlannedExperts(const Tensor& x, const ExpertChoice& choice,
                             const ExpertWeights& weights, const ExpertScratch& scratch,
                             const Tensor& out) {
  const int64_t rows = x.dim(0), chosen = choice.per_token(), slots = rows * chosen;
  const auto num_experts = static_cast<int64_t>(weights.in.size());
  const LinearWeight &in = weights.in.front(), &down = weights.down.front();
  const auto* const parts = weights.table.As<ExpertParts>();
  const auto* const ids = static_cast<const int32_t*>(choice.experts.data);
  const auto* const factors = static_cast<const float*>(choice.weights.data);
  auto* const places = static_cast<int32_t*>(scratch.order.data);
  auto* const sources = places + slots;
  const int64_t tile = TileFor(rows, slots, num_experts);
  LaunchEarly(context_, "the plan of experts", PlanKernel, dim3(1), kPlanThreads, 0, ids,
              static_cast<int>(slots), static_cast<int>(chosen), static_cast<int>(num_experts),
              static_cast<int>(tile), places, sources, plan_.items(), plan_.num_items());

  const auto gather = [&](const Tensor& from, const LinearWeight& weight,
                          const ExpertParts* parts_of, bool in_places, const float* scales,
                          void* to) {
    WithActivation(x.dtype, [&](auto element) {
      using T = decltype(element);
      Gather<T>(context_,
                {.x = static_cast<const T*>(from.data),
                 .places = places,
                 .experts = ids,
                 .scales = scales,
                 .parts = parts_of,
                 .count = slots,
                 .cols = weight.cols,
                 .chosen = in_places ? 0 : static_cast<int>(chosen),
                 .out = static_cast<T*>(to)},
                ArrangesInputs(weight));
    });
  };
  const auto product_of = [&](const Tensor& from, const LinearWeight& weight,
                              const ExpertParts* parts_of, const Tensor& to) {
    return ExpertProduct{.args = ArgsOf(from, weight, to),
                         .experts = parts_of,
                         .items = plan_.items(),
                         .num_items = plan_.num_items(),
                         .most_items = static_cast<int>(MostItems(slots, num_experts, tile)),
                         .tile = static_cast<int>(tile)};
  };

  // Streaming kernels find rows that do not change where they are. Others are brought to their
  // places, where their outputs will be.
  const bool in_place =
      tile <= kMaxStreamingTokens && !weights.scales_inputs && !ArrangesInputs(in);
  const Tensor& rows_in = in_place ? x : scratch.outputs;
  if (!in_place) {
    gather(x, in, parts, false, weights.scales_inputs ? factors : nullptr, rows_in.data);
  }
  const bool is_gated = in.rows == 2 * down.cols;
  const bool is_swiglu = weights.activation == Activation::kSilu && is_gated;
  ExpertProduct first = product_of(rows_in, in, parts, scratch.inner);
  if (in_place) first.args.sources = sources;
  // Tiles of 4 bits hold gate rows or up rows.
  const bool fused = is_swiglu && tile <= kMaxStreamingTokens && HasWholeUnits(first.args) &&
                     (!IsInt4(in.scheme) || down.cols % kInt4TileRows == 0);
  if (fused) {
    first.args.rows /= 2;
    first.args.out = scratch.activated.data;
    // The kernel of experts in 16 bits does not know factors.
    first.args.out_is_factors = !in.scheme.is_plain() && TakesFactors(x.dtype, down);
  }
  RunProduct(context_, x.dtype, in, first, fused);
  if (is_swiglu) {
    if (!fused) Activate(Activation::kSilu, scratch.inner, scratch.activated);
  } else {
    ActivateRows(context_, weights.activation, weights.limit, scratch.inner, scratch.activated);
  }

  Tensor arranged = scratch.activated;
  if (ArrangesInputs(down)) {
    arranged.data = scratch.inner.data;
    gather(scratch.activated, down, parts + num_experts, true, nullptr, arranged.data);
  }
  ExpertProduct second = product_of(arranged, down, parts + num_experts, scratch.outputs);
  second.args.x_is_factors = first.args.out_is_factors;
  RunProduct(context_, x.dtype, down, second, false);

  WithActivation(x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&]<int kCount>() {
      LaunchEarly(context_, "the sum of experts", SumKernel<T, kCount>,
                  BlocksFor(context_, rows * down.rows / kCount), kThreads, 0,
                  static_cast<const T*>(scratch.outputs.data), static_cast<const int32_t*>(places),
                  weights.scales_inputs ? nullptr : factors, rows, static_cast<int>(chosen),
                  down.rows, static_cast<T*>(out.data));
    };
    HasPieces(down.rows, scratch.outputs.data, out.data) ? launch.template operator()<8>()
                                                         : launch.template operator()<1>();
  });
}

void CudaOps::AddGated(const Tensor& sum, const Tensor& gate, const Tensor& x) {
  if (gate.empty()) return Add(sum, x);
  TANDEM_CHECK(sum.dtype == x.dtype && sum.shape == x.shape && gate.dtype == DType::kF32 &&
                   gate.dim(0) == sum.dim(0),
               "what is added has another shape");
  const int64_t count = sum.NumElements();
  if (count == 0) return;
  WithActivation(sum.dtype, [&](auto element) {
    using T = decltype(element);
    LaunchEarly(context_, "AddGated", AddGatedKernel<T>, BlocksFor(context_, count), kThreads, 0,
                static_cast<T*>(sum.data), static_cast<const float*>(gate.data),
                static_cast<const T*>(x.data), count, sum.dim(1));
  });
}

}  // namespace tandem::ops::cuda
