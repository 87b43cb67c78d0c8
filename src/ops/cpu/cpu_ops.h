// CpuOps: the forward-pass functions on the CPU. They check shapes, split work over the threads and
// call the kernels. Every split is over rows, outputs or heads, never over a summed dimension, so
// results do not depend on it. Owned by CpuBackend; one caller at a time.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/sample.h"
#include "ops/ops.h"

namespace tandem::ops::cpu {

class CpuOps final : public Ops {
 public:
  CpuOps(const CpuKernels& kernels, ThreadPool& pool);

  // Makes room for the activations of a weight; called when weights are packed, so that Linear
  // allocates nothing.
  void ReserveLinear(const LinearWeight& weight);

  void LaySlice(const BatchView& batch, const BatchSlice& slice) override;
  void Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) override;
  void EmbedPart(const TablePart& part, const int32_t* tokens, const Tensor& out) override;
  void AddNorm(const NormedRows& x) override;
  void Add(const Tensor& residual, const Tensor& delta) override;
  void NormHeads(const Tensor& qkv, int64_t first_column, int64_t num_columns, int64_t width,
                 const Norm& norm) override;
  void SumHeadSquares(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums) override;
  void NormHeadsBySums(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums,
                       int ranks) override;
  void Linear(const Tensor& x, const LinearWeight& weight, const Tensor& out) override;
  void QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                    const KvGroup& kv, int32_t layer) override;
  void PagedAttention(const Tensor& qkv, const BatchView& batch, const KvGroup& kv, int32_t layer,
                      const AttentionRule& rule, const Tensor& out) override;
  void HeadLinear(const HeadColumns& x, const LinearWeight& weight,
                  const HeadColumns& out) override;
  void LatentRopeStore(const Tensor& q, const Tensor& latents, const RopeTable& rope,
                       const BatchView& batch, const KvGroup& kv, int32_t layer,
                       const Tensor& queries) override;
  void Activate(Activation activation, const Tensor& in, const Tensor& out) override;
  // Many rows: one chunk of outputs after another, gate and up together, so that their products
  // stay in the thread's cache; `inner` is not written. The bits are those of separate calls.
  void Mlp(const Tensor& x, const LinearWeight& in_weight, Activation activation,
           const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
           const Tensor& out) override;
  void Route(const Tensor& scores, const Tensor& correction, const RoutingRule& rule,
             const ExpertChoice& out) override;
  // Rows are gathered by expert, and the products of several experts share one pass.
  void Experts(const Tensor& x, const ExpertChoice& choice, const ExpertWeights& weights,
               const ExpertScratch& scratch, const Tensor& out) override;
  void AddGated(const Tensor& sum, const Tensor& gate, const Tensor& x) override;
  void CapLogits(const Tensor& logits, float scale, float cap) override;
  void GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) override;
  void CopyBlock(const KvPool& pool, int32_t from, int32_t to, int32_t tokens) override;
  void ReserveSampling(int32_t max_rows, int64_t vocab) override;
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out) override;
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) override;

 private:
  void LinearRows(const Tensor& x, int64_t row_begin, int64_t num_rows, const LinearWeight& weight,
                  const Tensor& out);
  int64_t RowsOfPass(int64_t num_rows) const;
  bool FusesGate(int64_t num_rows, int64_t width) const;
  void GatedRows(const Tensor& x, int64_t row_begin, int64_t num_rows, const LinearWeight& weight,
                 Activation activation, const Tensor& activated);
  void ActivateRows(Activation activation, float limit, const Tensor& in, const Tensor& out);
  void ExpertProducts(const Tensor& x, std::span<const int32_t> ends,
                      std::span<const LinearWeight> weights, const Tensor& out);
  PackJob PackingOf(const Tensor& x, int64_t row_begin, int64_t num_rows,
                    const LinearWeight& weight);
  void PackForAll(const PackJob& pack);
  void ReserveAttention(int64_t head_dim);  // allocates only when head_dim grows
  float* LinearScratch(int thread) const;
  float* AttentionScratch(int thread) const;

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  CpuSampler sampler_;
  Buffer activations_;  // packed rows of one Linear, or one small copy per thread
  int64_t reserved_inputs_ = 0;
  Buffer linear_scratch_;     // [num_threads, kLinearScratchBytes]
  Buffer gated_scratch_;      // [num_threads, gate and up of a chunk] for kMaxLinearRows
  Buffer attention_scratch_;  // [num_threads, attention_scratch_stride_] floats
  int64_t attention_scratch_stride_ = 0;
};

}  // namespace tandem::ops::cpu
