// Dummy weights: a model of any size from a config only, whose next token is known. Embedding and
// head agree on a map from each token to the next one. The layers' weights are random over many
// binades (zeros would draw less power and clock higher); keys, values and attention scores have
// ordinary sizes (fp8 would round small ones to zero; a softmax over large ones would choose one
// key and rescale its sums all the time); but a layer adds so little to the residual that it is
// only noise. Timing is that of the real model, and the expected tokens can still be checked.
// Values come from a counter, so any tensor is made on demand, in parallel, in the memory of that
// one tensor. Used by one thread.
#pragma once

#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "model/weight_source.h"
#include "ops/backend.h"

namespace tandem {

struct DummyOptions {
  uint64_t seed = 0;
  // Share of tokens on which this model agrees with the map of the seed: 1 for a target; less for a
  // draft of that target, where it is the acceptance rate.
  double agreement = 1.0;
  // Tokens the map cycles through; 0 means the whole vocabulary. Give draft and target the smaller
  // of their vocabularies when these differ.
  int64_t map_tokens = 0;
  int num_threads = 0;  // 0: one per core
  // Not null: the layers' weights are made in this backend's memory, because they may not fit in
  // the host's; outlives the source.
  ops::Backend* backend = nullptr;
};

// The next token of a dummy model for each token: a value that outlives the weights.
class DummyMap {
 public:
  DummyMap(const DummyOptions& options, int64_t vocab_size);
  // The token that greedy decoding (and sampling: the margin is wide) puts after `token`.
  int32_t Expected(int32_t token) const;
  // True where the model follows the map of its seed.
  bool Agrees(int32_t token) const;
  // The token whose random vector is that row of the embedding or of the head.
  int64_t VectorOfEmbedding(int64_t token) const;
  int64_t VectorOfHead(int64_t token) const;

 private:
  uint64_t seed_;
  double agreement_;
  int64_t map_tokens_;
  int64_t stride_;  // the map is t -> (t + stride) mod map_tokens: one cycle through all of them
};

class DummySource final : public WeightSource {
 public:
  // A tied model gets a separate head (tied, it would repeat one token for ever), which costs a
  // decode step the same bytes. Weights are of the spec's type, even those that the model has in
  // fp8. The spec may be that of a rank (RankSpec): its layers have values of their own, and the
  // ranks together have the same map.
  static Result<std::unique_ptr<DummySource>> FromSpec(ModelSpec spec,
                                                       const DummyOptions& options = {});

  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override;

  const DummyMap& map() const { return map_; }

 private:
  DummySource(ModelSpec spec, const DummyOptions& options);
  struct ScratchList {
    std::vector<Buffer> buffers;
    size_t used = 0;
  };
  Result<Tensor> Scratch(DType dtype, const Shape& shape, bool on_backend);
  bool MadeOnBackend(const WeightId& id) const;
  // Fills with random signs and mantissas over several binades that suit the kind of values. Each
  // weight has its own stream. faint: smaller than float16 otherwise has them.
  void FillRandom(const Tensor& out, uint64_t stream, DummyValues values, bool faint);
  // Row i becomes random vector number row_of(i).
  template <typename RowOf>
  void FillVectors(const Tensor& out, RowOf row_of);
  void FillConstant(const Tensor& out, float value);
  double LayerNormScale() const;

  ModelSpec spec_;
  DummyOptions options_;
  const DummyMap map_;
  ThreadPool pool_;
  // Kept between tensors: touching fresh pages costs more than the values.
  ScratchList host_scratch_;
  ScratchList backend_scratch_;
};

}  // namespace tandem
