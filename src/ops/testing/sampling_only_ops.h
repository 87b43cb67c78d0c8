// SamplingOnlyOps: for tests whose models are formulas. The ops of a forward pass do nothing; those
// of sampling and of the cache are left to the test.
#pragma once

#include "ops/ops.h"

namespace tandem::ops {

class SamplingOnlyOps : public Ops {
 public:
  void LaySlice(const BatchView&, const BatchSlice&) override {}
  void Embed(const Tensor&, const int32_t*, const Tensor&) override {}
  void EmbedPart(const TablePart&, const int32_t*, const Tensor&) override {}
  void AddNorm(const NormedRows&) override {}
  void Add(const Tensor&, const Tensor&) override {}
  void NormHeads(const Tensor&, int64_t, int64_t, int64_t, const Norm&) override {}
  void SumHeadSquares(const Tensor&, const HeadNorms&, const Tensor&) override {}
  void NormHeadsBySums(const Tensor&, const HeadNorms&, const Tensor&, int) override {}
  void Linear(const Tensor&, const LinearWeight&, const Tensor&) override {}
  void QkvRopeStore(const Tensor&, const RopeTable&, const BatchView&, const KvGroup&,
                    int32_t) override {}
  void PagedAttention(const Tensor&, const BatchView&, const KvGroup&, int32_t,
                      const AttentionRule&, const Tensor&) override {}
  void HeadLinear(const HeadColumns&, const LinearWeight&, const HeadColumns&) override {}
  void LatentRopeStore(const Tensor&, const Tensor&, const RopeTable&, const BatchView&,
                       const KvGroup&, int32_t, const Tensor&) override {}
  void Activate(Activation, const Tensor&, const Tensor&) override {}
  void Route(const Tensor&, const Tensor&, const RoutingRule&, const ExpertChoice&) override {}
  void Experts(const Tensor&, const ExpertChoice&, const ExpertWeights&, const ExpertScratch&,
               const Tensor&) override {}
  void AddGated(const Tensor&, const Tensor&, const Tensor&) override {}
  void CapLogits(const Tensor&, float, float) override {}
  void GatherRows(const Tensor&, const int32_t*, const Tensor&) override {}
};

}  // namespace tandem::ops
