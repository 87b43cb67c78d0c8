// ObservedBackend: computes like another backend and shows an observer what the products and
// experts of a forward pass read. That backend and the observer outlive it. Used by one thread.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "ops/forwarding_backend.h"

namespace tandem {

class ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  virtual void SeeProduct(const Tensor& x, const ops::LinearWeight& weight) = 0;
  // Rows from `first_row` of the batch on. inner: [slots, intermediate], by expert and of one
  // expert in the order of the slots (row * experts of a row + choice).
  virtual void SeeExperts(int64_t first_row, const Tensor& x, const ops::ExpertChoice& choice,
                          const Tensor& inner) = 0;
};

// Composes fused ops of single ones, and shows what products take.
class ObservedOps final : public ops::ForwardingOps {
 public:
  ObservedOps(ops::Ops& inner, ProductObserver& observer)
      : ForwardingOps(inner), observer_(observer) {}

  void Linear(const Tensor& x, const ops::LinearWeight& weight, const Tensor& out) override {
    observer_.SeeProduct(x, weight);
    inner_.Linear(x, weight, out);
  }
  // Past ForwardingOps, to the compositions of single ops.
  // NOLINTBEGIN(bugprone-parent-virtual-call)
  void NormLinear(const ops::NormedRows& x, const ops::LinearWeight& weight,
                  const Tensor& out) override {
    Ops::NormLinear(x, weight, out);
  }
  void LinearAdd(const Tensor& x, const ops::LinearWeight& weight, ops::NormedRows& sum) override {
    Ops::LinearAdd(x, weight, sum);
  }
  void LinearRopeStore(const Tensor& x, const ops::LinearWeight& weight, const Tensor& qkv,
                       const ops::RopeTable& rope, const ops::BatchView& batch,
                       const ops::KvGroup& kv, int32_t layer) override {
    Ops::LinearRopeStore(x, weight, qkv, rope, batch, kv, layer);
  }
  void NormLinearRopeStore(const ops::NormedRows& x, const ops::LinearWeight& weight,
                           const Tensor& qkv, const ops::RopeTable& rope,
                           const ops::BatchView& batch, const ops::KvGroup& kv,
                           int32_t layer) override {
    Ops::NormLinearRopeStore(x, weight, qkv, rope, batch, kv, layer);
  }
  void Mlp(const Tensor& x, const ops::LinearWeight& in_weight, ops::Activation activation,
           const ops::LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
           const Tensor& out) override {
    Ops::Mlp(x, in_weight, activation, down_weight, inner, activated, out);
  }
  void NormMlp(const ops::NormedRows& x, const ops::LinearWeight& in_weight,
               ops::Activation activation, const ops::LinearWeight& down_weight,
               const Tensor& inner, const Tensor& activated, const Tensor& out) override {
    Ops::NormMlp(x, in_weight, activation, down_weight, inner, activated, out);
  }
  void NormMlpAdd(const ops::NormedRows& x, const ops::LinearWeight& in_weight,
                  ops::Activation activation, const ops::LinearWeight& down_weight,
                  const Tensor& inner, const Tensor& activated, ops::NormedRows& sum) override {
    Ops::NormMlpAdd(x, in_weight, activation, down_weight, inner, activated, sum);
  }
  // NOLINTEND(bugprone-parent-virtual-call)
  void Experts(const Tensor& x, const ops::ExpertChoice& choice, const ops::ExpertWeights& weights,
               const ops::ExpertScratch& scratch, const Tensor& out) override {
    const int64_t rows = x.dim(0);
    for (int64_t first = 0; first < rows; first += kExpertRows) {
      const int64_t count = std::min(kExpertRows, rows - first);
      // A backend may leave what quantized weights take next in a form of its own.
      TANDEM_CHECK(weights.down.front().scheme.is_plain(), "experts in 16 or 32 bits");
      const int64_t slots = count * choice.per_token();
      const ops::ExpertChoice chosen = {choice.experts.RowRange(first, count),
                                        choice.weights.RowRange(first, count)};
      const Tensor activated = scratch.activated.RowRange(0, slots);
      inner_.Experts(x.RowRange(first, count), chosen, weights,
                     {scratch.order, scratch.inner.RowRange(0, slots), activated,
                      scratch.outputs.RowRange(0, slots)},
                     out.RowRange(first, count));
      observer_.SeeExperts(first, x.RowRange(first, count), chosen, activated);
    }
  }

 private:
  // Rows that go through experts together: few enough for every backend to compute them in one
  // piece, so that all their inner values are in the scratch afterwards.
  static constexpr int64_t kExpertRows = 1024;

  ProductObserver& observer_;
};

class ObservedBackend final : public ops::ForwardingBackend {
 public:
  ObservedBackend(ops::Backend& inner, ProductObserver& observer)
      : ForwardingBackend(inner), ops_(inner.ops(), observer) {}
  ops::Ops& ops() override { return ops_; }

 private:
  ObservedOps ops_;
};

}  // namespace tandem
