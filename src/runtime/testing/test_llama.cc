#include "runtime/testing/test_llama.h"

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "model/rank_source.h"
#include "model/sharding.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// Keys and values of these models are mostly below 4.
constexpr float kCacheScale = 4.0f / 127.0f;

// By names, so that a new kind of weight changes none of the others.
uint32_t StreamOf(const WeightId& id) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : RowOf(id.role).hf_name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash + static_cast<uint32_t>(100 * id.layer + static_cast<int>(id.part));
}

class RandomSource final : public WeightSource {
 public:
  RandomSource(const ModelSpec& spec, uint32_t seed, float noise)
      : spec_(spec), seed_(seed), noise_(noise) {}
  const ModelSpec& spec() const override { return spec_; }

  Result<Tensor> Get(const WeightId& id) override {
    const auto found = buffers_.find(id);
    const Shape shape = WeightShape(spec_, id);
    const DType dtype = WeightDType(spec_, id);
    if (found != buffers_.end()) return found->second.View(dtype, shape);
    const uint32_t stream = StreamOf(id);
    std::mt19937 random(seed_ + stream), other(seed_ + stream + 77777);
    const bool norm = shape.rank() == 1;
    const float deviation = norm ? 0.1f : 2.0f / std::sqrt(static_cast<float>(shape[1]));
    std::normal_distribution<float> normal(0.0f, deviation), mixed(0.0f, deviation);
    std::vector<float> values(static_cast<size_t>(shape.NumElements()));
    for (float& value : values) {
      value = (norm ? 1.0f : 0.0f) + normal(random) + noise_ * mixed(other);
    }
    if (id.part == WeightPart::kCacheScale) values.assign(values.size(), kCacheScale);
    Buffer buffer = Buffer::OnHost(values.size() * SizeOf(dtype));
    ConvertElements({values.data(), DType::kF32, shape, Device{}}, buffer.View(dtype, shape));
    return buffers_.emplace(id, std::move(buffer)).first->second.View(dtype, shape);
  }

 private:
  const ModelSpec spec_;
  const uint32_t seed_;
  const float noise_;
  std::map<WeightId, Buffer> buffers_;
};

}  // namespace

ModelSpec TinyLlamaSpec(DType dtype, int64_t max_positions) {
  ModelSpec spec;
  spec.family = "llama";
  spec.dtype = dtype;
  spec.vocab_size = 96;
  spec.hidden_size = 32;
  LayerSpec layer;
  layer.attention.num_heads = 2;
  layer.attention.num_kv_heads = 1;
  layer.attention.head_dim = layer.attention.rope.dim = 16;
  layer.mlp.intermediate_size = 48;
  spec.layers.assign(2, layer);
  spec.max_positions = max_positions;
  return spec;
}

EngineModel MakeTinyLlama(const ModelSpec& spec, uint32_t seed, float noise, ops::Backend& backend,
                          const RankPlace& place) {
  RandomSource source(spec, seed, noise);
  if (place.is_whole()) return {LoadWeights(source, backend, spec.max_positions).value(), "tiny"};
  RankSource part(source, RankSpec(spec, place).value());
  return {LoadWeights(part, backend, spec.max_positions).value(), "tiny"};
}

}  // namespace tandem
