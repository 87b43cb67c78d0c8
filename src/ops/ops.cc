#include "ops/ops.h"

namespace tandem::ops {

void Ops::NormLinear(const NormedRows& x, const LinearWeight& weight, const Tensor& out) {
  AddNorm(x);
  Linear(x.rows, weight, out);
}

void Ops::LinearAdd(const Tensor& x, const LinearWeight& weight, NormedRows& sum) {
  Linear(x, weight, sum.delta);
  sum.squares = {};
}

void Ops::NormQkvRopeStore(const Tensor& qkv, const HeadNorms& norms, const RopeTable& rope,
                           const BatchView& batch, const KvGroup& kv, int32_t layer) {
  const auto& [queries, keys] = norms;
  NormHeads(qkv, 0, queries.count, queries.width, queries.norm);
  NormHeads(qkv, queries.count, keys.count, keys.width, keys.norm);
  QkvRopeStore(qkv, rope, batch, kv, layer);
}

void Ops::LinearRopeStore(const Tensor& x, const LinearWeight& weight, const Tensor& qkv,
                          const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                          int32_t layer) {
  Linear(x, weight, qkv);
  QkvRopeStore(qkv, rope, batch, kv, layer);
}

void Ops::NormLinearRopeStore(const NormedRows& x, const LinearWeight& weight, const Tensor& qkv,
                              const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                              int32_t layer) {
  NormLinear(x, weight, qkv);
  QkvRopeStore(qkv, rope, batch, kv, layer);
}

void Ops::Mlp(const Tensor& x, const LinearWeight& in_weight, Activation activation,
              const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
              const Tensor& out) {
  Linear(x, in_weight, inner);
  Activate(activation, inner, activated);
  Linear(activated, down_weight, out);
}

void Ops::NormMlp(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
                  const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
                  const Tensor& out) {
  AddNorm(x);
  Mlp(x.rows, in_weight, activation, down_weight, inner, activated, out);
}

void Ops::NormMlpAdd(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
                     const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
                     NormedRows& sum) {
  NormMlp(x, in_weight, activation, down_weight, inner, activated, sum.delta);
  sum.squares = {};
}

}  // namespace tandem::ops
