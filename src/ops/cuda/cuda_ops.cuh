// CudaOps: Ops on one GPU, every op enqueued on the context's stream. Each op is in the .cu file
// with its name. Owned by the backend; used by the executor's thread. Workspaces are made with the
// object or by Reserve...; outside WarmUp an op allocates nothing and never waits, so that it can
// be captured.
#pragma once

#include <functional>

#include "ops/cuda/device/context.cuh"
#include "ops/cuda/experts.cuh"
#include "ops/cuda/linear/linear.cuh"
#include "ops/cuda/paged_attention.cuh"
#include "ops/cuda/sample/sample.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

class CudaOps final : public Ops {
 public:
  explicit CudaOps(const Context& context);

  // As Backend::WarmUp.
  void WarmUp(const std::function<void()>& work);
  // Makes what products of a weight that was packed need beside it.
  void ReserveFor(const LinearWeight& weight) { linear_.ReserveFor(weight); }

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
  void NormLinear(const NormedRows& x, const LinearWeight& weight, const Tensor& out) override;
  void LinearAdd(const Tensor& x, const LinearWeight& weight, NormedRows& sum) override;
  void ClearSquares(const Tensor& squares) override;
  void QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                    const KvGroup& kv, int32_t layer) override;
  void NormQkvRopeStore(const Tensor& qkv, const HeadNorms& norms, const RopeTable& rope,
                        const BatchView& batch, const KvGroup& kv, int32_t layer) override;
  void LinearRopeStore(const Tensor& x, const LinearWeight& weight, const Tensor& qkv,
                       const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                       int32_t layer) override;
  void NormLinearRopeStore(const NormedRows& x, const LinearWeight& weight, const Tensor& qkv,
                           const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                           int32_t layer) override;
  void LaySlice(const BatchView& batch, const BatchSlice& slice) override;
  void BeginPass(const BatchView& batch) override { attention_.BeginPass(batch); }
  void EndPass() override { attention_.EndPass(); }
  void PagedAttention(const Tensor& qkv, const BatchView& batch, const KvGroup& kv, int32_t layer,
                      const AttentionRule& rule, const Tensor& out) override;
  void HeadLinear(const HeadColumns& x, const LinearWeight& weight,
                  const HeadColumns& out) override;
  void LatentRopeStore(const Tensor& q, const Tensor& latents, const RopeTable& rope,
                       const BatchView& batch, const KvGroup& kv, int32_t layer,
                       const Tensor& queries) override;
  void Activate(Activation activation, const Tensor& in, const Tensor& out) override;
  void Mlp(const Tensor& x, const LinearWeight& in_weight, Activation activation,
           const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
           const Tensor& out) override;
  void NormMlp(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
               const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
               const Tensor& out) override;
  void NormMlpAdd(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
                  const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
                  NormedRows& sum) override;
  void Route(const Tensor& scores, const Tensor& correction, const RoutingRule& rule,
             const ExpertChoice& out) override;
  void Experts(const Tensor& x, const ExpertChoice& choice, const ExpertWeights& weights,
               const ExpertScratch& scratch, const Tensor& out) override;
  void AddGated(const Tensor& sum, const Tensor& gate, const Tensor& x) override;
  void CapLogits(const Tensor& logits, float scale, float cap) override;
  void GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) override;
  void CopyBlock(const KvPool& pool, int32_t from, int32_t to, int32_t tokens) override;
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out) override;
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) override;

 private:
  // The second half of an MLP.
  void SwiGluLinear(const Tensor& gate_up, const LinearWeight& weight, const Tensor& activated,
                    const Tensor& out);
  // Experts, for no more rows than the plan has room for.
  void PlannedExperts(const Tensor& x, const ExpertChoice& choice, const ExpertWeights& weights,
                      const ExpertScratch& scratch, const Tensor& out);

  const Context context_;
  LinearRunner linear_;
  AttentionRunner attention_;
  const ExpertPlan plan_;
  CudaSampler sampler_;
};

}  // namespace tandem::ops::cuda
