// Route: a warp chooses the experts of a row. The steps are those of route_rules.h; the lanes share
// the experts, whose scores lie in shared memory, and in registers for the choice.
#include <algorithm>

#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/route_rules.h"

namespace tandem::ops::cuda {
namespace {

constexpr int kWarps = 2;
constexpr int kThreads = 32 * kWarps;

__device__ float WarpLargest(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0U, value, distance));
  }
  return value;
}
__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0U, value, distance);
  }
  return value;
}

// A warp's values in shared memory: lane i has those at i, i + 32, ... Each function is called by
// all lanes, and leaves what other lanes have written visible.
struct Values {
  float* at;
  int count;
};

template <typename Change>
__device__ void ChangeEach(const Values& values, const Change& change) {
  for (int i = static_cast<int>(threadIdx.x) % 32; i < values.count; i += 32) {
    values.at[i] = change(i, values.at[i]);
  }
  __syncwarp();
}

__device__ float SumOf(const Values& values) {
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < values.count; i += 32) sum += values.at[i];
  return WarpSum(sum);
}

// The index of the largest value, the first of equal ones; 0 if none is above kNoScore.
__device__ int LargestOf(const Values& values) {
  float largest = kNoScore;
  int best = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < values.count; i += 32) {
    if (!(values.at[i] > largest)) continue;
    best = i;
    largest = values.at[i];
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(~0U, largest, distance);
    const int at = __shfl_xor_sync(~0U, best, distance);
    if (other > largest || (other == largest && at < best)) {
      largest = other;
      best = at;
    }
  }
  return best;
}

__device__ void ApplyFunction(RoutingRule::Function function, const Values& values) {
  if (function == RoutingRule::Function::kSigmoid) {
    return ChangeEach(values, [](int, float x) { return 1.0f / (1.0f + expf(-x)); });
  }
  float largest = kNoScore;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < values.count; i += 32) {
    largest = fmaxf(largest, values.at[i]);
  }
  largest = WarpLargest(largest);
  ChangeEach(values, [&](int, float x) { return expf(x - largest); });
  const float sum = SumOf(values);
  ChangeEach(values, [&](int, float x) { return x / sum; });
}

// Leaves the values of the best groups. groups, kept: [num_groups] scratch.
__device__ void KeepBestGroups(const RoutingRule& rule, const Values& values, float* groups,
                               float* kept) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int size = values.count / rule.num_groups;
  const Values all = {groups, rule.num_groups};
  ChangeEach(all, [&](int g, float) {
    kept[g] = 0.0f;
    return GroupValueOf(rule, values.at + g * size, size);
  });
  for (int i = 0; i < rule.chosen_groups; ++i) {
    const int best = LargestOf(all);
    __syncwarp();  // all have read the groups
    if (lane == 0) {
      groups[best] = kNoScore;
      kept[best] = 1.0f;
    }
    __syncwarp();
  }
  const float lost = rule.others_count_zero ? 0.0f : kNoScore;
  ChangeEach(values, [&](int i, float x) { return kept[i / size] != 0.0f ? x : lost; });
}

// Floats of shared memory of a warp: what becomes weights, what decides, groups and which of them
// are kept.
constexpr int kArrays = 4;

// A float as a number without sign that is larger where the float is. Zeros are equal.
__device__ uint32_t OrderOf(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? ~0U : 1U << 31);
}

// As LargestOf, of values in registers: lane i has those of indices i, i + 32, ...
template <int kPerLane>
__device__ int LargestInLanes(const float (&values)[kPerLane]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float largest = kNoScore;
  uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (!(values[i] > largest)) continue;
    best = static_cast<uint32_t>(32 * i + lane);
    largest = values[i];
  }
  const uint32_t order = OrderOf(largest);
  const bool is_largest = order == __reduce_max_sync(~0U, order);
  return static_cast<int>(__reduce_min_sync(~0U, is_largest ? best : ~0U));
}

// kPerLane: experts of a lane, at most.
template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    RouteKernel(const float* scores, const float* correction, const RoutingRule rule, int rows,
                int num_experts, int32_t* experts, float* weights) {
  extern __shared__ float shared[];
  __shared__ float chosen_values[kWarps][kMaxExpertsPerToken];
  __shared__ int32_t chosen_experts[kWarps][kMaxExpertsPerToken];
  BeginKernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (row >= rows) return;
  float* const memory = shared + warp * kArrays * num_experts;
  const Values values = {memory, num_experts};
  const Values choice = {memory + num_experts, num_experts};
  const Values chosen = {chosen_values[warp], rule.experts_per_token};
  scores += static_cast<int64_t>(row) * num_experts;
  experts += static_cast<int64_t>(row) * rule.experts_per_token;
  weights += static_cast<int64_t>(row) * rule.experts_per_token;

  float own[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    own[i] = 32 * i + lane < num_experts ? scores[32 * i + lane] : kNoScore;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (32 * i + lane < num_experts) values.at[32 * i + lane] = own[i];
  }
  __syncwarp();
  if (!rule.chosen_first) ApplyFunction(rule.function, values);
  ChangeEach(choice, [&](int i, float) {
    return correction == nullptr ? values.at[i] : values.at[i] + correction[i];
  });
  if (rule.chosen_groups < rule.num_groups) {
    KeepBestGroups(rule, choice, memory + 2 * num_experts, memory + 3 * num_experts);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    own[i] = 32 * i + lane < num_experts ? choice.at[32 * i + lane] : kNoScore;
  }
  for (int k = 0; k < rule.experts_per_token; ++k) {
    const int best = LargestInLanes(own);
    if (lane == 0) chosen_experts[warp][k] = best;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (32 * i + lane == best) own[i] = kNoScore;
    }
  }
  __syncwarp();
  ChangeEach(chosen, [&](int k, float) {
    experts[k] = chosen_experts[warp][k] - rule.first;
    return values.at[chosen_experts[warp][k]];
  });
  if (rule.chosen_first) ApplyFunction(rule.function, chosen);
  const float sum = SumOf(chosen);
  const float factor = rule.renormalise ? rule.scale / (sum + 1e-20f) : rule.scale;
  for (int k = lane; k < rule.experts_per_token; k += 32) weights[k] = chosen.at[k] * factor;
}

}  // namespace

void CudaOps::Route(const Tensor& scores, const Tensor& correction, const RoutingRule& rule,
                    const ExpertChoice& out) {
  const int64_t rows = scores.dim(0), num_experts = scores.dim(1);
  TANDEM_CHECK(scores.dtype == DType::kF32 && num_experts <= kMaxExperts &&
                   rule.experts_per_token <= kMaxExpertsPerToken,
               "scores of too many experts");
  TANDEM_CHECK(out.per_token() == rule.experts_per_token && out.experts.dim(0) == rows,
               "the choice has another shape");
  if (rows == 0) return;
  const int64_t bytes = kWarps * kArrays * num_experts * static_cast<int64_t>(sizeof(float));
  const auto launch = [&]<int kPerLane>() {
    LaunchEarly(context_, "Route", RouteKernel<kPerLane>,
                dim3(static_cast<unsigned>(CeilDiv(rows, kWarps))), kThreads,
                static_cast<int>(bytes), static_cast<const float*>(scores.data),
                static_cast<const float*>(correction.data), rule, static_cast<int>(rows),
                static_cast<int>(num_experts), static_cast<int32_t*>(out.experts.data),
                static_cast<float*>(out.weights.data));
  };
  num_experts <= 128 ? launch.template operator()<4>()
                     : launch.template operator()<kMaxExperts / 32>();
}

}  // namespace tandem::ops::cuda
