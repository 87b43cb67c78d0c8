// Layers of experts: the plan of their products, made on the device, and how the device finds the
// weights of an expert. Used by CudaOps and its backend.
#pragma once

#include <functional>

#include "ops/cuda/device/context.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

struct ExpertItem;

// Memory for the plan of one call of Experts. Owns it; any thread makes it, calls follow each other
// on the stream.
class ExpertPlan {
 public:
  // Experts of all rows together that one plan has room for.
  static constexpr int64_t kMaxSlots = int64_t{1} << 16;

  ExpertPlan();
  ~ExpertPlan();
  ExpertPlan(const ExpertPlan&) = delete;
  ExpertPlan& operator=(const ExpertPlan&) = delete;

  ExpertItem* items() const;
  int32_t* num_items() const { return static_cast<int32_t*>(memory_); }

 private:
  void* const memory_;
};

// As Backend::MakeExpertTable; `allocate` gives device memory.
Result<Buffer> MakeExpertTable(const Context& context,
                               const std::function<Result<Buffer>(size_t bytes)>& allocate,
                               const ExpertWeights& weights);

}  // namespace tandem::ops::cuda
