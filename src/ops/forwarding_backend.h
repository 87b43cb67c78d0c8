// ForwardingBackend, ForwardingOps and ForwardingRoundOps: forward every call to another backend's
// object, so that single calls can be overridden: to observe them, or by a test. That object
// outlives them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ops/backend.h"

namespace tandem::ops {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(Ops& inner) : inner_(inner) {}
  void BeginPass(const BatchView& batch) override { inner_.BeginPass(batch); }
  void EndPass() override { inner_.EndPass(); }
  void Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) override {
    inner_.Embed(table, tokens, out);
  }
  void EmbedPart(const TablePart& part, const int32_t* tokens, const Tensor& out) override {
    inner_.EmbedPart(part, tokens, out);
  }
  void AddNorm(const NormedRows& x) override { inner_.AddNorm(x); }
  void Add(const Tensor& residual, const Tensor& delta) override { inner_.Add(residual, delta); }
  void NormHeads(const Tensor& qkv, int64_t first_column, int64_t num_columns, int64_t width,
                 const Norm& norm) override {
    inner_.NormHeads(qkv, first_column, num_columns, width, norm);
  }
  void SumHeadSquares(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums) override {
    inner_.SumHeadSquares(qkv, norms, sums);
  }
  void NormHeadsBySums(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums,
                       int ranks) override {
    inner_.NormHeadsBySums(qkv, norms, sums, ranks);
  }
  void Linear(const Tensor& x, const LinearWeight& weight, const Tensor& out) override {
    inner_.Linear(x, weight, out);
  }
  void NormLinear(const NormedRows& x, const LinearWeight& weight, const Tensor& out) override {
    inner_.NormLinear(x, weight, out);
  }
  void LinearAdd(const Tensor& x, const LinearWeight& weight, NormedRows& sum) override {
    inner_.LinearAdd(x, weight, sum);
  }
  void ClearSquares(const Tensor& squares) override { inner_.ClearSquares(squares); }
  void QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                    const KvGroup& kv, int32_t layer) override {
    inner_.QkvRopeStore(qkv, rope, batch, kv, layer);
  }
  void NormQkvRopeStore(const Tensor& qkv, const HeadNorms& norms, const RopeTable& rope,
                        const BatchView& batch, const KvGroup& kv, int32_t layer) override {
    inner_.NormQkvRopeStore(qkv, norms, rope, batch, kv, layer);
  }
  void LinearRopeStore(const Tensor& x, const LinearWeight& weight, const Tensor& qkv,
                       const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                       int32_t layer) override {
    inner_.LinearRopeStore(x, weight, qkv, rope, batch, kv, layer);
  }
  void NormLinearRopeStore(const NormedRows& x, const LinearWeight& weight, const Tensor& qkv,
                           const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                           int32_t layer) override {
    inner_.NormLinearRopeStore(x, weight, qkv, rope, batch, kv, layer);
  }
  void PagedAttention(const Tensor& qkv, const BatchView& batch, const KvGroup& kv, int32_t layer,
                      const AttentionRule& rule, const Tensor& out) override {
    inner_.PagedAttention(qkv, batch, kv, layer, rule, out);
  }
  void HeadLinear(const HeadColumns& x, const LinearWeight& weight,
                  const HeadColumns& out) override {
    inner_.HeadLinear(x, weight, out);
  }
  void LatentRopeStore(const Tensor& q, const Tensor& latents, const RopeTable& rope,
                       const BatchView& batch, const KvGroup& kv, int32_t layer,
                       const Tensor& queries) override {
    inner_.LatentRopeStore(q, latents, rope, batch, kv, layer, queries);
  }
  void Activate(Activation activation, const Tensor& in, const Tensor& out) override {
    inner_.Activate(activation, in, out);
  }
  void Mlp(const Tensor& x, const LinearWeight& in_weight, Activation activation,
           const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
           const Tensor& out) override {
    inner_.Mlp(x, in_weight, activation, down_weight, inner, activated, out);
  }
  void NormMlp(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
               const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
               const Tensor& out) override {
    inner_.NormMlp(x, in_weight, activation, down_weight, inner, activated, out);
  }
  void NormMlpAdd(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
                  const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
                  NormedRows& sum) override {
    inner_.NormMlpAdd(x, in_weight, activation, down_weight, inner, activated, sum);
  }
  void Route(const Tensor& scores, const Tensor& correction, const RoutingRule& rule,
             const ExpertChoice& out) override {
    inner_.Route(scores, correction, rule, out);
  }
  void Experts(const Tensor& x, const ExpertChoice& choice, const ExpertWeights& weights,
               const ExpertScratch& scratch, const Tensor& out) override {
    inner_.Experts(x, choice, weights, scratch, out);
  }
  void AddGated(const Tensor& sum, const Tensor& gate, const Tensor& x) override {
    inner_.AddGated(sum, gate, x);
  }
  void CapLogits(const Tensor& logits, float scale, float cap) override {
    inner_.CapLogits(logits, scale, cap);
  }
  void LaySlice(const BatchView& batch, const BatchSlice& slice) override {
    inner_.LaySlice(batch, slice);
  }
  void GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) override {
    inner_.GatherRows(x, rows, out);
  }
  void CopyBlock(const KvPool& pool, int32_t from, int32_t to, int32_t tokens) override {
    inner_.CopyBlock(pool, from, to, tokens);
  }
  void ReserveSampling(int32_t max_rows, int64_t vocab) override {
    inner_.ReserveSampling(max_rows, vocab);
  }
  void Sample(std::span<const SampleRow> rows, int64_t vocab,
              std::span<SampledToken> out) override {
    inner_.Sample(rows, vocab, out);
  }
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) override {
    inner_.VerifyAndAccept(rows, vocab);
  }

 protected:
  Ops& inner_;
};

class ForwardingRoundOps : public RoundOps {
 public:
  explicit ForwardingRoundOps(RoundOps& inner) : inner_(inner) {}
  void StartSlot(const SlotArrays& slots, const SlotPatch* patch) override {
    inner_.StartSlot(slots, patch);
  }
  void EndSlot(const SlotArrays& slots, int32_t slot) override { inner_.EndSlot(slots, slot); }
  void ApplyPlan(const Round& round, int32_t max_items) override {
    inner_.ApplyPlan(round, max_items);
  }
  void LaySentRows(const Round& round, int32_t max_items, int32_t num_rows,
                   const float* logits) override {
    inner_.LaySentRows(round, max_items, num_rows, logits);
  }
  void LookUpDrafts(const Round& round, int32_t max_items) override {
    inner_.LookUpDrafts(round, max_items);
  }
  void LayDraftRows(const Round& round, const PassBounds& bounds) override {
    inner_.LayDraftRows(round, bounds);
  }
  void LayDraftSamples(const Round& round, const PassBounds& bounds, const float* logits,
                       int64_t stride) override {
    inner_.LayDraftSamples(round, bounds, logits, stride);
  }
  void KeepDrafts(const Round& round, const PassBounds& bounds) override {
    inner_.KeepDrafts(round, bounds);
  }
  void LayTargetRows(const Round& round, const PassBounds& bounds) override {
    inner_.LayTargetRows(round, bounds);
  }
  void LayTargetSamples(const Round& round, const PassBounds& bounds,
                        const float* logits) override {
    inner_.LayTargetSamples(round, bounds, logits);
  }
  void LayVerifyRows(const Round& round, const PassBounds& bounds) override {
    inner_.LayVerifyRows(round, bounds);
  }
  void LayChosenRows(const Round& round, const PassBounds& bounds) override {
    inner_.LayChosenRows(round, bounds);
  }
  void Accept(const Round& round, const PassBounds& bounds, const float* logits) override {
    inner_.Accept(round, bounds, logits);
  }
  void KeepLogits(const Round& round, const PassBounds& bounds, const float* logits,
                  float* kept) override {
    inner_.KeepLogits(round, bounds, logits, kept);
  }

 protected:
  RoundOps& inner_;
};

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}
  std::string Describe() const override { return inner_.Describe(); }
  Device device() const override { return inner_.device(); }
  void BindThread() const override { inner_.BindThread(); }
  Ops& ops() override { return inner_.ops(); }
  RoundOps& round() override { return inner_.round(); }
  Result<Buffer> Allocate(size_t bytes) override { return inner_.Allocate(bytes); }
  void CopyToDevice(void* to, const void* from, size_t bytes) override {
    inner_.CopyToDevice(to, from, bytes);
  }
  void CopyToHost(void* to, const void* from, size_t bytes) override {
    inner_.CopyToHost(to, from, bytes);
  }
  void FillRandom(const Tensor& out, const RandomWords& words) override {
    inner_.FillRandom(out, words);
  }
  int64_t FreeBytes() const override { return inner_.FreeBytes(); }
  Result<Buffer> AllocatePinned(size_t bytes) override { return inner_.AllocatePinned(bytes); }
  void EnqueueCopyToDevice(void* to, const void* from, size_t bytes) override {
    inner_.EnqueueCopyToDevice(to, from, bytes);
  }
  void EnqueueCopyToHost(void* to, const void* from, size_t bytes) override {
    inner_.EnqueueCopyToHost(to, from, bytes);
  }
  void EnqueueSideCopyToHost(void* to, const void* from, size_t bytes) override {
    inner_.EnqueueSideCopyToHost(to, from, bytes);
  }
  void EnqueueSideCopyToDevice(void* to, const void* from, size_t bytes) override {
    inner_.EnqueueSideCopyToDevice(to, from, bytes);
  }
  void JoinSideCopies() override { inner_.JoinSideCopies(); }
  void Mark(int mark) override { inner_.Mark(mark); }
  Status WaitFor(int mark) override { return inner_.WaitFor(mark); }
  double SecondsBetween(int from, int to) override { return inner_.SecondsBetween(from, to); }
  Status Synchronize() override { return inner_.Synchronize(); }
  void WarmUp(const std::function<void()>& work) override { inner_.WarmUp(work); }
  std::unique_ptr<Graph> Capture(const std::function<void()>& enqueue) override {
    return inner_.Capture(enqueue);
  }
  void Launch(const Graph& graph) override { inner_.Launch(graph); }
  Result<LinearWeight> PackLinear(std::span<const LinearPart> parts,
                                  const WeightFormat& kept) override {
    return inner_.PackLinear(parts, kept);
  }
  Result<Buffer> MakeExpertTable(const ExpertWeights& weights) override {
    return inner_.MakeExpertTable(weights);
  }
  Status CheckFormat(const WeightFormat& stored, const WeightFormat& kept) const override {
    return inner_.CheckFormat(stored, kept);
  }
  QuantScheme KeptScheme(const QuantScheme& stored) const override {
    return inner_.KeptScheme(stored);
  }
  Status CheckSizes(int64_t vocab, int64_t head_dim) const override {
    return inner_.CheckSizes(vocab, head_dim);
  }
  Status CheckKvType(DType stored) const override { return inner_.CheckKvType(stored); }
  int64_t PackedBytes(int64_t rows, int64_t cols, const WeightFormat& kept) const override {
    return inner_.PackedBytes(rows, cols, kept);
  }
  double MeasureReadBandwidth() override { return inner_.MeasureReadBandwidth(); }
  double MeasureMatrixPeak(DType dtype) override { return inner_.MeasureMatrixPeak(dtype); }

 protected:
  Backend& inner_;
};

}  // namespace tandem::ops
