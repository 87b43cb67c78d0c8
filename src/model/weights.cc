#include "model/weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/rope.h"

namespace tandem {
namespace {

// Copies a tensor of the source as it is.
Status LoadPlain(WeightSource& source, ops::Backend& backend, WeightRole role, int64_t layer,
                 Buffer& out) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, source.Get(role, layer, WeightPart::kWeight));
  const auto bytes = static_cast<size_t>(tensor.NumBytes());
  TANDEM_ASSIGN_OR_RETURN(out, backend.Allocate(bytes));
  backend.CopyToDevice(out.data(), tensor.data, bytes);
  source.Release();
  return {};
}

// What the layers' linear weights are kept in unless asked for otherwise.
DType KeptLinears(const ModelSpec& spec, const ops::Backend& backend) {
  return spec.fp8_linears ? backend.KeptFp8(spec.dtype) : spec.dtype;
}

// Packs the weights of several roles one below the other: q, k and v share their input, and so do
// gate and up. Where each was calibrated for itself, the largest range holds all inputs.
Status LoadLinear(WeightSource& source, ops::Backend& backend, std::span<const WeightRole> roles,
                  int64_t layer, DType stored, ops::LinearWeight& out) {
  const ModelSpec& spec = source.spec();
  std::vector<ops::LinearPart> parts;
  float input_scale = 0.0f;
  for (const WeightRole role : roles) {
    ops::LinearPart& part = parts.emplace_back();
    TANDEM_ASSIGN_OR_RETURN(part.weight, source.Get(role, layer, WeightPart::kWeight));
    if (HasBias(spec, role)) {
      TANDEM_ASSIGN_OR_RETURN(part.bias, source.Get(role, layer, WeightPart::kBias));
    }
    if (!HasScales(spec, role)) continue;
    TANDEM_ASSIGN_OR_RETURN(part.scale, source.Get(role, layer, WeightPart::kScale));
    if (!spec.fixed_input_scales) continue;
    TANDEM_ASSIGN_OR_RETURN(const Tensor scale, source.Get(role, layer, WeightPart::kInputScale));
    input_scale = std::max(input_scale, *scale.As<float>());
  }
  TANDEM_ASSIGN_OR_RETURN(out, backend.PackLinear(parts, stored));
  out.input_scale = input_scale;
  source.Release();
  return {};
}

Status LoadLayer(WeightSource& source, ops::Backend& backend, int64_t layer, DType stored,
                 LayerWeights& out) {
  constexpr std::array kQkv = {WeightRole::kQuery, WeightRole::kKey, WeightRole::kValue};
  constexpr std::array kOut = {WeightRole::kAttentionOut};
  constexpr std::array kGateUp = {WeightRole::kGate, WeightRole::kUp};
  constexpr std::array kDown = {WeightRole::kDown};
  TANDEM_RETURN_IF_ERROR(LoadPlain(source, backend, WeightRole::kInputNorm, layer, out.input_norm));
  TANDEM_RETURN_IF_ERROR(LoadPlain(source, backend, WeightRole::kPostNorm, layer, out.post_norm));
  TANDEM_RETURN_IF_ERROR(LoadLinear(source, backend, kQkv, layer, stored, out.qkv));
  TANDEM_RETURN_IF_ERROR(LoadLinear(source, backend, kOut, layer, stored, out.out));
  TANDEM_RETURN_IF_ERROR(LoadLinear(source, backend, kGateUp, layer, stored, out.gate_up));
  return LoadLinear(source, backend, kDown, layer, stored, out.down);
}

Status MakeRopeTables(const ModelSpec& spec, ops::Backend& backend, int64_t max_positions,
                      Weights& out) {
  const Shape shape{max_positions, spec.head_dim / 2};
  const auto bytes = static_cast<size_t>(shape.NumElements()) * sizeof(float);
  const Buffer cos = Buffer::OnHost(bytes);
  const Buffer sin = Buffer::OnHost(bytes);
  if (cos.data() == nullptr || sin.data() == nullptr) {
    return ResourceExhausted("no memory for rotary tables of " + std::to_string(bytes) + " bytes");
  }
  FillRopeTables(spec, max_positions, cos.View(DType::kF32, shape), sin.View(DType::kF32, shape));
  TANDEM_ASSIGN_OR_RETURN(out.rope_cos, backend.Allocate(bytes));
  TANDEM_ASSIGN_OR_RETURN(out.rope_sin, backend.Allocate(bytes));
  backend.CopyToDevice(out.rope_cos.data(), cos.data(), bytes);
  backend.CopyToDevice(out.rope_sin.data(), sin.data(), bytes);
  return {};
}

}  // namespace

ops::RopeTable Weights::rope() const {
  const int64_t half = spec.head_dim / 2;
  const Shape shape{static_cast<int64_t>(rope_cos.bytes() / sizeof(float)) / half, half};
  return {rope_cos.View(DType::kF32, shape), rope_sin.View(DType::kF32, shape)};
}

int64_t Weights::StepBytes() const {
  const auto bytes = [](const ops::LinearWeight& weight) {
    return weight.weight_bytes() + static_cast<int64_t>(weight.scales.bytes());
  };
  int64_t sum = bytes(head);
  for (const LayerWeights& layer : layers) {
    sum += bytes(layer.qkv) + bytes(layer.out) + bytes(layer.gate_up) + bytes(layer.down);
  }
  return sum;
}

Result<std::shared_ptr<const Weights>> LoadWeights(WeightSource& source, ops::Backend& backend,
                                                   int64_t max_positions,
                                                   const LoadProgress& progress,
                                                   std::optional<DType> linears) {
  const auto report = [&progress](double share) {
    if (progress) progress(share);
  };
  auto weights = std::make_shared<Weights>();
  const ModelSpec& spec = weights->spec = source.spec();
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  if (max_positions < 1) return InvalidArgument("max_positions must be at least 1");

  TANDEM_RETURN_IF_ERROR(LoadPlain(source, backend, WeightRole::kEmbedding, 0, weights->embedding));
  const std::array head_role = {spec.tied_head ? WeightRole::kEmbedding : WeightRole::kHead};
  TANDEM_RETURN_IF_ERROR(LoadLinear(source, backend, head_role, 0, spec.dtype, weights->head));
  TANDEM_RETURN_IF_ERROR(
      LoadPlain(source, backend, WeightRole::kFinalNorm, 0, weights->final_norm));
  weights->layers.resize(static_cast<size_t>(spec.num_layers));
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    report(static_cast<double>(layer) / static_cast<double>(spec.num_layers));
    TANDEM_RETURN_IF_ERROR(LoadLayer(source, backend, layer,
                                     linears.value_or(KeptLinears(spec, backend)),
                                     weights->layers[static_cast<size_t>(layer)]));
  }
  TANDEM_RETURN_IF_ERROR(source.Finish());
  TANDEM_RETURN_IF_ERROR(MakeRopeTables(spec, backend, max_positions, *weights));
  report(1.0);
  return std::shared_ptr<const Weights>(std::move(weights));
}

Status CheckLoadable(const ModelSpec& spec, ops::Backend& backend, std::optional<DType> linears) {
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  // The backend's word on one row is its word on all.
  const Buffer row = Buffer::OnHost(static_cast<size_t>(spec.hidden_size) * SizeOf(spec.dtype));
  if (row.data() == nullptr) return ResourceExhausted("no memory for a row of weights");
  const ops::LinearPart part = {.weight = row.View(spec.dtype, {1, spec.hidden_size})};
  return backend.PackLinear(std::span(&part, 1), linears.value_or(KeptLinears(spec, backend)))
      .status();
}

int64_t WeightBytes(const ModelSpec& spec, const ops::Backend& backend, int64_t max_positions,
                    std::optional<DType> linears) {
  const DType kept = linears.value_or(KeptLinears(spec, backend));
  const auto packed = [&](int64_t rows, int64_t cols, bool has_bias) {
    const int64_t bias = has_bias ? rows * int64_t{sizeof(float)} : 0;
    return backend.PackedBytes(rows, cols, kept) + bias;
  };
  const auto element = static_cast<int64_t>(SizeOf(spec.dtype));
  const int64_t hidden = spec.hidden_size;
  const int64_t layer = packed(spec.qkv_rows(), hidden, spec.attention_bias) +
                        packed(hidden, spec.num_heads * spec.head_dim, spec.attention_bias) +
                        packed(2 * spec.intermediate_size, hidden, spec.mlp_bias) +
                        packed(hidden, spec.intermediate_size, spec.mlp_bias) +
                        2 * hidden * element;
  const int64_t rope = max_positions * spec.head_dim * static_cast<int64_t>(sizeof(float));
  return spec.num_layers * layer + backend.PackedBytes(spec.vocab_size, hidden, spec.dtype) +
         (spec.vocab_size + 1) * hidden * element + rope;
}

}  // namespace tandem
