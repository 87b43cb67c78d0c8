#include "model/weight_loader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/convert.h"

namespace tandem {
namespace {

// Whether the weights that are packed with this one are stored as it is.
bool HaveOneScheme(const ModelSpec& spec, WeightRole role, int64_t layer) {
  const QuantScheme scheme = SchemeOf(spec, role, layer);
  return std::ranges::all_of(RolesOf(spec, RowOf(role).pack, layer), [&](WeightRole other) {
    return SchemeOf(spec, other, layer) == scheme;
  });
}

// For a head beside quantized layers: of 8 bits, because a head of 4 bits loses accuracy; and
// without the input scales that a stored scheme may have.
QuantScheme HeadLike(const QuantScheme& layers) {
  using Element = QuantScheme::Element;
  QuantScheme head = Fp8Scheme(QuantScheme::Inputs::kDynamic);
  if (layers.element != Element::kFp8E4M3) head.element = Element::kInt8;
  return head;
}

// A head's product of a weight by heads, as [rows, cols].
struct HeadShape {
  int64_t heads;
  int64_t rows;
  int64_t cols;

  int64_t padded_rows() const { return heads * ops::PaddedHeadRows(rows); }
};
HeadShape HeadShapeOf(const ModelSpec& spec, WeightRole role, int64_t layer) {
  const WeightRow& row = RowOf(role);
  const int64_t heads = spec.layer(layer).attention.num_heads;
  const int64_t rows = row.rows(spec, layer) / heads, cols = row.columns(spec, layer);
  if (row.by_head == HeadProducts::kTransposed) return {heads, cols, rows};
  return {heads, rows, cols};
}

int64_t PackBytes(const ModelSpec& spec, const ops::Backend& backend, WeightPack pack,
                  int64_t layer, const AskedFormat& asked) {
  const std::vector<WeightRole> roles = RolesOf(spec, pack, layer);
  if (roles.empty()) return 0;
  int64_t rows = 0;
  bool has_bias = false;
  for (const WeightRole role : roles) {
    rows += RowOf(role).rows(spec, layer);
    has_bias = has_bias || HasBias(spec, role, layer);
  }
  const WeightRole first = roles.front();
  const WeightFormat kept = KeptFormat(spec, first, layer, backend, asked);
  if (RowOf(first).by_head != HeadProducts::kNone) {
    const HeadShape shape = HeadShapeOf(spec, first, layer);
    return backend.PackedBytes(shape.padded_rows(), shape.cols, kept);
  }
  return backend.PackedBytes(rows, RowOf(first).columns(spec, layer), kept) +
         (has_bias ? rows * int64_t{sizeof(float)} : 0);
}

}  // namespace

WeightFormat KeptFormat(const ModelSpec& spec, WeightRole role, int64_t layer,
                        const ops::Backend& backend, const AskedFormat& asked) {
  if (RowOf(role).by_head != HeadProducts::kNone) return {spec.dtype, {}};
  const std::optional<QuantScheme>& layers = asked.layers;
  const QuantScheme stored = SchemeOf(spec, role, layer);
  if (role == WeightRole::kHead && stored.is_plain()) {
    if (asked.head) return {spec.dtype, *asked.head};
    const QuantScheme like = asked.head_as_layers
                                 ? KeptFormat(spec, WeightRole::kQuery, 0, backend, asked).scheme
                                 : QuantScheme{};
    const WeightFormat rounded{spec.dtype, HeadLike(like)};
    const bool can = !like.is_plain() && backend.CheckFormat({spec.dtype, {}}, rounded).ok();
    if (can) return rounded;
  }
  if (!HaveOneScheme(spec, role, layer)) return {spec.dtype, {}};
  const bool changes = layers && RowOf(role).quantizable && layers->element != stored.element;
  if (changes) return {spec.dtype, *layers};
  return {spec.dtype, layers ? stored : backend.KeptScheme(stored)};
}

Status WeightLoader::Allocate(size_t bytes, Buffer& out) {
  TANDEM_ASSIGN_OR_RETURN(out, backend_.Allocate(bytes));
  bytes_ += static_cast<int64_t>(bytes);
  return {};
}

Status WeightLoader::LoadPlain(const WeightId& id, Buffer& out) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, source_.Get(id));
  const auto bytes = static_cast<size_t>(tensor.NumBytes());
  TANDEM_RETURN_IF_ERROR(Allocate(bytes, out));
  backend_.CopyToDevice(out.data(), tensor.data, bytes);
  source_.Release();
  return {};
}

Status WeightLoader::LoadExperts(int64_t layer, ops::ExpertWeights& out) {
  for (const auto& [pack, weights] : {std::pair(WeightPack::kExpertGateUp, &out.in),
                                      std::pair(WeightPack::kExpertDown, &out.down)}) {
    weights->resize(static_cast<size_t>(spec().layer(layer).moe.experts_here()));
    for (size_t expert = 0; expert < weights->size(); ++expert) {
      TANDEM_RETURN_IF_ERROR(
          LoadPack(pack, layer, (*weights)[expert], static_cast<int64_t>(expert)));
    }
  }
  TANDEM_ASSIGN_OR_RETURN(out.table, backend_.MakeExpertTable(out));
  return {};
}

Status WeightLoader::LoadHeads(WeightRole role, int64_t layer, ops::LinearWeight& out) {
  TANDEM_ASSIGN_OR_RETURN(const ops::LinearPart part, ReadPart(source_, role, layer, /*expert=*/0));
  const HeadShape shape = HeadShapeOf(spec(), role, layer);
  const bool transposed = RowOf(role).by_head == HeadProducts::kTransposed;
  const Shape padded{shape.padded_rows(), shape.cols};
  const int64_t head_elements = padded.NumElements() / shape.heads;
  const int64_t stored_rows = transposed ? shape.cols : shape.rows;
  std::vector<float> row(static_cast<size_t>(part.cols()));
  std::vector<float> floats(static_cast<size_t>(padded.NumElements()));
  for (int64_t r = 0; r < part.rows(); ++r) {
    ops::WidenRow(part, r, row.data());
    float* const head = floats.data() + r / stored_rows * head_elements;
    const int64_t index = r % stored_rows;
    for (int64_t c = 0; c < part.cols(); ++c) {
      head[transposed ? c * shape.cols + index : index * shape.cols + c] =
          row[static_cast<size_t>(c)];
    }
  }
  source_.Release();
  const WeightFormat kept = KeptFormat(spec(), role, layer, backend_, asked_);
  const Buffer host = Buffer::OnHost(floats.size() * SizeOf(kept.dtype));
  if (host.data() == nullptr) return ResourceExhausted("no memory for the products of heads");
  const Tensor plain = host.View(kept.dtype, padded);
  ConvertElements({floats.data(), DType::kF32, padded, {}}, plain);
  const ops::LinearPart whole{.weight = plain};
  TANDEM_ASSIGN_OR_RETURN(out, backend_.PackLinear({&whole, 1}, kept));
  bytes_ += static_cast<int64_t>(out.data.bytes());
  step_bytes_ += out.weight_bytes();
  return {};
}

Status WeightLoader::LoadPack(WeightPack pack, int64_t layer, ops::LinearWeight& out,
                              int64_t expert) {
  const std::vector<WeightRole> roles = RolesOf(spec(), pack, layer);
  TANDEM_CHECK(!roles.empty(), "a pack that the layer has");
  if (RowOf(roles.front()).by_head != HeadProducts::kNone) {
    return LoadHeads(roles.front(), layer, out);
  }
  std::vector<ops::LinearPart> parts;
  for (const WeightRole role : roles) {
    TANDEM_ASSIGN_OR_RETURN(parts.emplace_back(), ReadPart(source_, role, layer, expert));
  }
  const WeightFormat kept = KeptFormat(spec(), roles.front(), layer, backend_, asked_);
  for (const auto& [has, kind] : {std::pair(kept.scheme.input_factors, WeightPart::kInputFactors),
                                  std::pair(kept.scheme.input_order, WeightPart::kInputOrder)}) {
    if (!has) continue;
    const WeightId of{roles.front(), layer, kind, expert};
    TANDEM_RETURN_IF_ERROR(CommonVector(source_, roles, of).status());
  }
  TANDEM_ASSIGN_OR_RETURN(out, backend_.PackLinear(parts, kept));
  out.same_everywhere =
      asked_.same_everywhere || (pack == WeightPack::kRouter && spec().place.ranks > 1);
  if (HaveOneScheme(spec(), roles.front(), layer) &&
      parts.front().scheme.inputs == QuantScheme::Inputs::kStatic) {
    TANDEM_ASSIGN_OR_RETURN(out.input_scale,
                            LargestInputScale(source_, roles, {roles.front(), layer, {}, expert}));
  }
  bytes_ += static_cast<int64_t>(out.data.bytes() + out.bias.bytes()) + out.factor_bytes();
  const bool is_read = !RowOf(roles.front()).per_expert ||
                       expert < spec().layer(layer).moe.routing.experts_per_token;
  if (is_read) step_bytes_ += out.weight_bytes() + out.factor_bytes();
  source_.Release();
  return {};
}

Status WeightLoader::LoadCacheScales(WeightRole role, const std::vector<int64_t>& layers,
                                     Buffer& out) {
  std::vector<float> scales;
  for (const int64_t layer : layers) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor tensor,
                            source_.Get({role, layer, WeightPart::kCacheScale}));
    scales.insert(scales.end(), tensor.As<float>(), tensor.As<float>() + tensor.NumElements());
    source_.Release();
  }
  return LoadFloats(scales, out);
}

Status WeightLoader::LoadBytes(const Buffer& host, Buffer& out) {
  TANDEM_RETURN_IF_ERROR(Allocate(host.bytes(), out));
  backend_.CopyToDevice(out.data(), host.data(), host.bytes());
  return {};
}

Status WeightLoader::LoadFloats(std::span<const float> values, Buffer& out) {
  TANDEM_RETURN_IF_ERROR(Allocate(values.size_bytes(), out));
  backend_.CopyToDevice(out.data(), values.data(), values.size_bytes());
  return {};
}

int64_t LoadedBytes(const ModelSpec& spec, const ops::Backend& backend, const AskedFormat& asked) {
  int64_t bytes = 0;
  for (const WeightId& id : StoredWeights(spec)) {
    const WeightPack pack = RowOf(id.role).pack;
    const bool as_stored = id.part == WeightPart::kCacheScale || pack == WeightPack::kNone;
    if (as_stored) {
      bytes +=
          WeightShape(spec, id).NumElements() * static_cast<int64_t>(SizeOf(WeightDType(spec, id)));
    } else if (id.part != WeightPart::kWeight) {
      continue;  // counted with its weight's pack
    } else if (RolesOf(spec, pack, id.layer).front() == id.role) {
      bytes += PackBytes(spec, backend, pack, id.layer, asked);
    }
  }
  if (spec.tied_head) bytes += PackBytes(spec, backend, WeightPack::kHead, 0, asked);
  return bytes;
}

}  // namespace tandem
