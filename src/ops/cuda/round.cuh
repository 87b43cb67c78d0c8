// CudaRoundOps: RoundOps on the GPU: a few small kernels, each of one wave, by the rules of
// round_rules.h. Every launch is on the context's stream. Owned by the backend.
#pragma once

#include "ops/cuda/device/context.cuh"
#include "ops/round.h"

namespace tandem::ops::cuda {

class CudaRoundOps final : public RoundOps {
 public:
  explicit CudaRoundOps(const Context& context) : context_(context) {}

  void StartSlot(const SlotArrays& slots, const SlotPatch* patch) override;
  void EndSlot(const SlotArrays& slots, int32_t slot) override;
  void ApplyPlan(const Round& round, int32_t max_items) override;
  void LaySentRows(const Round& round, int32_t max_items, int32_t num_rows,
                   const float* logits) override;
  void LookUpDrafts(const Round& round, int32_t max_items) override;
  void LayDraftRows(const Round& round, const PassBounds& bounds) override;
  void LayDraftSamples(const Round& round, const PassBounds& bounds, const float* logits,
                       int64_t stride) override;
  void KeepDrafts(const Round& round, const PassBounds& bounds) override;
  void LayTargetRows(const Round& round, const PassBounds& bounds) override;
  void LayTargetSamples(const Round& round, const PassBounds& bounds, const float* logits) override;
  void LayVerifyRows(const Round& round, const PassBounds& bounds) override;
  void LayChosenRows(const Round& round, const PassBounds& bounds) override;
  void Accept(const Round& round, const PassBounds& bounds, const float* logits) override;
  void KeepLogits(const Round& round, const PassBounds& bounds, const float* logits,
                  float* kept) override;

 private:
  const Context context_;
};

}  // namespace tandem::ops::cuda
