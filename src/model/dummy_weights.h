// Dummy weights: a model of any size from a config alone, whose next token is known. Embedding and
// head agree on a map from each token to the next one; the layers' weights are random over many
// binades (zeros would draw less power and clock higher), keys, values and the scores of attention
// have ordinary sizes (fp8 would round small ones to zero; a soft-max over large ones would choose
// one key and rescale its sums all the time), but what a layer adds to the residual is so small
// that it is only noise. Timing is that of the real model, and the expected tokens can still be
// checked. Values come from a counter, so any tensor is made on demand, in parallel, in the memory
// of that one tensor. Used by one thread.
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
  // draft of that target, whose acceptance rate this becomes.
  double agreement = 1.0;
  // Tokens the map cycles through; 0 means the whole vocabulary. Give draft and target the smaller
  // of their vocabularies when these differ.
  int64_t map_tokens = 0;
  int num_threads = 0;  // 0: one per core
  // Not null: the layers' weights are made in this backend's memory, where no host could hold them;
  // outlives the source.
  ops::Backend* backend = nullptr;
};

// What a dummy model answers: a value that outlives the weights.
class DummyMap {
 public:
  DummyMap(const DummyOptions& options, int64_t vocab_size);
  // The token that greedy decoding (and sampling: the margin is wide) puts after `token`.
  int32_t Expected(int32_t token) const;
  // True where the model follows the map of its seed.
  bool Agrees(int32_t token) const;
  // The token whose random vector stands in that row of the embedding or of the head.
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
  // A tied model gets a head of its own (tied, it would repeat one token for ever), which costs a
  // decode step the same bytes. Weights are of the spec's type, also those that the model has in
  // fp8.
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
  Result<Tensor> Scratch(const Shape& shape, bool on_backend);
  bool MadeOnBackend(const WeightId& id) const;
  // Fills with random signs and mantissas over several binades, those that suit the kind of values.
  // The stream is the weight's.
  void FillRandom(const Tensor& out, uint64_t stream, DummyValues values);
  // Row i becomes the random vector number row_of(i).
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
