// WeightLoader: copies the blocks' weights into a backend's memory. It is the only code that does,
// so its byte count is the size of the model. Made for one load, used by the thread that loads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "model/weight_source.h"
#include "ops/backend.h"

namespace tandem {

// How a backend is to keep the weights of a model.
struct AskedFormat {
  // The scheme for quantizable weights; those whose elements have its type already stay as they are
  // stored. Default: Backend::KeptScheme of the stored scheme.
  std::optional<QuantScheme> layers = {};
  // The same for the head. Default: as it is stored.
  std::optional<QuantScheme> head = {};
  // The head is kept in fp8 or int8 where the layers are quantized, if the backend can. For drafts
  // only: their tokens are verified, so rounding can only cost accepted tokens.
  bool head_as_layers = false;
  // Of a model that is whole on each of several ranks: LinearWeight::same_everywhere of all its
  // products. Those that choose experts have it on ranks that each have a part, too.
  bool same_everywhere = false;
};

class WeightLoader {
 public:
  WeightLoader(WeightSource& source, ops::Backend& backend, const AskedFormat& asked)
      : source_(source), backend_(backend), asked_(asked) {}

  const ModelSpec& spec() const { return source_.spec(); }
  // For what is read on the host.
  WeightSource& source() { return source_; }
  // A tensor as the source gives it.
  Status LoadPlain(const WeightId& id, Buffer& out);
  // The weights of a pack (of an expert), one below the other, with one input scale where inputs
  // are static. A weight by heads becomes one that Ops::HeadLinear takes.
  Status LoadPack(WeightPack pack, int64_t layer, ops::LinearWeight& out, int64_t expert = 0);
  // Both products of every expert of the layer, and their table.
  Status LoadExperts(int64_t layer, ops::ExpertWeights& out);
  // The cache scales of the keys or values (`role`) of `layers`, one layer's heads after another's:
  // [layers, num_kv_heads] fp32.
  Status LoadCacheScales(WeightRole role, const std::vector<int64_t>& layers, Buffer& out);
  // Anything else that a model needs in the backend's memory.
  Status LoadBytes(const Buffer& host, Buffer& out);
  Status LoadFloats(std::span<const float> values, Buffer& out);

  // What has been loaded so far, and what of it a decode step of one row reads: weights and scales
  // of products.
  int64_t bytes() const { return bytes_; }
  int64_t step_bytes() const { return step_bytes_; }

 private:
  Status Allocate(size_t bytes, Buffer& out);
  Status LoadHeads(WeightRole role, int64_t layer, ops::LinearWeight& out);

  WeightSource& source_;
  ops::Backend& backend_;
  const AskedFormat asked_;
  int64_t bytes_ = 0;
  int64_t step_bytes_ = 0;
};

// The format in which a backend keeps a weight that is packed.
WeightFormat KeptFormat(const ModelSpec& spec, WeightRole role, int64_t layer,
                        const ops::Backend& backend, const AskedFormat& asked);

// Bytes that LoadPlain, LoadPack and LoadCacheScales of all weights will take, for the memory plan.
int64_t LoadedBytes(const ModelSpec& spec, const ops::Backend& backend, const AskedFormat& asked);

}  // namespace tandem
