// RouteRow: which experts one row chooses, and with which weights, by the rule in ops.h
// (RoutingRule). A pure function, for the CPU; cuda/route.cu takes the same steps with a warp.
#pragma once

#include "base/host_device.h"
#include "ops/ops.h"
#include "ops/portable_math.h"

namespace tandem::ops {

// Below every score.
constexpr float kNoScore = -__builtin_inff();

inline float Sigmoid(float x) {
  // PortableExp is finite between -87 and 88.
  if (x < -87.0f) return 0.0f;
  return x > 87.0f ? 1.0f : 1.0f / (1.0f + PortableExp(-x));
}

// values[i] = exp(values[i]) / the sum of all.
inline void SoftmaxInPlace(float* values, int32_t count) {
  float largest = kNoScore;
  for (int32_t i = 0; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  float sum = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    const float below = values[i] - largest;
    values[i] = below < -87.0f ? 0.0f : PortableExp(below);
    sum += values[i];
  }
  for (int32_t i = 0; i < count; ++i) values[i] /= sum;
}

inline void ApplyFunction(RoutingRule::Function function, float* values, int32_t count) {
  if (function == RoutingRule::Function::kSoftmax) return SoftmaxInPlace(values, count);
  for (int32_t i = 0; i < count; ++i) values[i] = Sigmoid(values[i]);
}

// The index of the largest value, the first of equal ones; 0 if none is above kNoScore.
inline int32_t LargestOf(const float* values, int32_t count) {
  int32_t best = 0;
  float largest = kNoScore;
  for (int32_t i = 0; i < count; ++i) {
    if (!(values[i] > largest)) continue;
    best = i;
    largest = values[i];
  }
  return best;
}

// Also a step of cuda/route.cu.
TANDEM_HOST_DEVICE inline float GroupValueOf(const RoutingRule& rule, const float* values,
                                             int32_t count) {
  float largest = kNoScore, second = kNoScore;
  for (int32_t i = 0; i < count; ++i) {
    if (values[i] > largest) {
      second = largest;
      largest = values[i];
    } else if (values[i] > second) {
      second = values[i];
    }
  }
  return rule.group_value == RoutingRule::GroupValue::kLargest ? largest : largest + second;
}

// Leaves the values of the best groups.
inline void KeepBestGroups(const RoutingRule& rule, float* values, int32_t count) {
  float groups[kMaxExperts];
  const int32_t size = count / rule.num_groups;
  for (int32_t g = 0; g < rule.num_groups; ++g) {
    groups[g] = GroupValueOf(rule, values + g * size, size);
  }
  bool kept[kMaxExperts] = {};
  for (int32_t i = 0; i < rule.chosen_groups; ++i) {
    const int32_t best = LargestOf(groups, rule.num_groups);
    groups[best] = kNoScore;
    kept[best] = true;
  }
  for (int32_t i = 0; i < count; ++i) {
    if (!kept[i / size]) values[i] = rule.others_count_zero ? 0.0f : kNoScore;
  }
}

// scores: [num_experts], at most kMaxExperts; correction: [num_experts] or null. experts, weights:
// [rule.experts_per_token].
inline void RouteRow(const RoutingRule& rule, const float* scores, const float* correction,
                     int32_t num_experts, int32_t* experts, float* weights) {
  float values[kMaxExperts];  // what becomes weights
  float choice[kMaxExperts];  // what decides
  for (int32_t i = 0; i < num_experts; ++i) values[i] = scores[i];
  if (!rule.chosen_first) ApplyFunction(rule.function, values, num_experts);
  for (int32_t i = 0; i < num_experts; ++i) {
    choice[i] = correction == nullptr ? values[i] : values[i] + correction[i];
  }
  if (rule.chosen_groups < rule.num_groups) KeepBestGroups(rule, choice, num_experts);
  float sum = 0.0f;
  for (int32_t k = 0; k < rule.experts_per_token; ++k) {
    experts[k] = LargestOf(choice, num_experts);
    weights[k] = values[experts[k]];
    choice[experts[k]] = kNoScore;
  }
  if (rule.chosen_first) ApplyFunction(rule.function, weights, rule.experts_per_token);
  for (int32_t k = 0; k < rule.experts_per_token; ++k) sum += weights[k];
  // As in the authors' code, whose smallest sum is that of sigmoids near zero.
  const float factor = rule.renormalise ? rule.scale / (sum + 1e-20f) : rule.scale;
  for (int32_t k = 0; k < rule.experts_per_token; ++k) {
    weights[k] *= factor;
    experts[k] -= rule.first;
  }
}

}  // namespace tandem::ops
