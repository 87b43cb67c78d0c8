#include "model/spec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/weight_roles.h"

namespace tandem {
namespace {

// Far above every published model, low enough that products of three fit in 63 bits.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHeads = 4096;

Status CheckRange(const std::string& field, int64_t value, int64_t max, int64_t min = 1) {
  if (value >= min && value <= max) return {};
  return InvalidArgument(field + " is " + std::to_string(value) + "; it must be between " +
                         std::to_string(min) + " and " + std::to_string(max));
}

Status CheckPositive(const std::string& field, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return InvalidArgument(field + " is " + std::to_string(value) + "; it must be a positive number");
}

template <typename Number>
Status CheckNotNegative(const std::string& field, Number value) {
  if (value >= 0 && value <= std::numeric_limits<Number>::max()) return {};
  return InvalidArgument(field + " is " + std::to_string(value) +
                         "; it must be zero or a positive number");
}

Status CheckMultiple(const std::string& field, int64_t value, const std::string& of,
                     int64_t divisor) {
  if (value % divisor == 0) return {};
  return InvalidArgument(field + " (" + std::to_string(value) + ") must be a multiple of " + of +
                         " (" + std::to_string(divisor) + ")");
}

Status CheckFactors(const std::string& field, const std::vector<double>& factors, int64_t pairs) {
  if (static_cast<int64_t>(factors.size()) != pairs) {
    return InvalidArgument(field + " has " + std::to_string(factors.size()) +
                           " numbers; there must be one for each of the " + std::to_string(pairs) +
                           " pairs that turn");
  }
  for (const double factor : factors) TANDEM_RETURN_IF_ERROR(CheckPositive(field, factor));
  return {};
}

Status CheckScaling(const RopeScaling& scaling, int64_t pairs, const FieldNames& name) {
  if (scaling.kind == RopeScaling::Kind::kNone) return {};
  // First what a reader may have made the factor from.
  TANDEM_RETURN_IF_ERROR(CheckRange(name("rope.original_max_positions"),
                                    scaling.original_max_positions, kMaxPositions));
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("rope.factor"), scaling.factor));
  if (scaling.factor < 1.0) return InvalidArgument(name("rope.factor") + " must be at least 1");
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("rope.attention_factor"), scaling.attention_factor));
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    TANDEM_RETURN_IF_ERROR(CheckPositive(name("rope.beta_slow"), scaling.beta_slow));
    return CheckPositive(name("rope.beta_fast"), scaling.beta_fast);
  }
  if (scaling.kind == RopeScaling::Kind::kLongRope) {
    TANDEM_RETURN_IF_ERROR(CheckFactors(name("rope.short_factors"), scaling.short_factors, pairs));
    return CheckFactors(name("rope.long_factors"), scaling.long_factors, pairs);
  }
  if (scaling.kind != RopeScaling::Kind::kLlama3) return {};
  const std::string low = name("rope.low_freq_factor"), high = name("rope.high_freq_factor");
  TANDEM_RETURN_IF_ERROR(CheckPositive(low, scaling.low_freq_factor));
  TANDEM_RETURN_IF_ERROR(CheckPositive(high, scaling.high_freq_factor));
  if (scaling.low_freq_factor <= scaling.high_freq_factor) return {};
  return InvalidArgument(low + " must not be above " + high);
}

Status CheckGrowth(const QueryGrowth& growth, const FieldNames& name) {
  if (growth.kind == QueryGrowth::Kind::kNone) return {};
  // The logarithm of 1 is 0.
  TANDEM_RETURN_IF_ERROR(
      CheckRange(name("query_growth.length"), growth.length, kMaxPositions, /*min=*/2));
  return CheckNotNegative(name("query_growth.factor"), growth.factor);
}

Status CheckLatents(const AttentionSpec& attention, const FieldNames& name) {
  const LatentSpec& latent = attention.latent;
  if (latent.rank == 0) return {};
  TANDEM_RETURN_IF_ERROR(CheckRange(name("latent.rank"), latent.rank, kMaxHeadDim));
  TANDEM_RETURN_IF_ERROR(CheckRange(name("latent.key_dim"), latent.key_dim, kMaxHeadDim));
  TANDEM_RETURN_IF_ERROR(CheckRange(name("latent.value_dim"), latent.value_dim, kMaxHeadDim));
  if (latent.query_rank != 0) {
    TANDEM_RETURN_IF_ERROR(CheckRange(name("latent.query_rank"), latent.query_rank, kMaxWidth));
  }
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("latent.norm_epsilon"), latent.norm_epsilon));
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("attention.scale"), attention.scale));
  if (attention.num_kv_heads != 1 || attention.head_dim != latent.rank + attention.rope.dim) {
    return InvalidArgument("the cache of latents has " + std::to_string(attention.num_kv_heads) +
                           " heads of " + std::to_string(attention.head_dim) +
                           " elements; it must have one of " + name("latent.rank") + " (" +
                           std::to_string(latent.rank) + ") and " + name("rope.dim") + " (" +
                           std::to_string(attention.rope.dim) + ") elements");
  }
  const bool plain = attention.head_norm == HeadNorm::kNone && attention.alibi_scale == 0.0 &&
                     attention.growth.kind == QueryGrowth::Kind::kNone;
  if (plain) return {};
  return InvalidArgument("attention over latents has no norms of heads, no alibi and no growth");
}

Status CheckMoe(const MoeSpec& moe, const FieldNames& name) {
  const ops::RoutingRule& rule = moe.routing;
  const std::string experts = name("moe.num_experts"), groups = name("moe.routing.num_groups");
  TANDEM_RETURN_IF_ERROR(CheckRange(experts, moe.num_experts, ops::kMaxExperts));
  TANDEM_CHECK(moe.routing.first >= 0 && moe.routing.first + moe.experts_here() <= moe.num_experts,
               "a rank with experts that the layer does not have");
  TANDEM_RETURN_IF_ERROR(
      CheckRange(name("moe.expert.intermediate_size"), moe.expert.intermediate_size, kMaxWidth));
  TANDEM_RETURN_IF_ERROR(CheckRange(groups, rule.num_groups, moe.num_experts));
  TANDEM_RETURN_IF_ERROR(
      CheckRange(name("moe.routing.chosen_groups"), rule.chosen_groups, rule.num_groups));
  TANDEM_RETURN_IF_ERROR(CheckMultiple(experts, moe.num_experts, groups, rule.num_groups));
  const int64_t choices = rule.others_count_zero
                              ? moe.num_experts
                              : moe.num_experts / rule.num_groups * rule.chosen_groups;
  TANDEM_RETURN_IF_ERROR(CheckRange(name("moe.routing.experts_per_token"), rule.experts_per_token,
                                    std::min<int64_t>(choices, ops::kMaxExpertsPerToken)));
  if (moe.expert.activation == ops::Activation::kClampedSwiglu) {
    TANDEM_RETURN_IF_ERROR(CheckPositive(name("moe.limit"), moe.limit));
    if (!moe.expert.gated) return InvalidArgument("experts with clamped_swiglu must be gated");
  }
  return CheckPositive(name("moe.routing.scale"), rule.scale);
}

Status CheckRope(const AttentionSpec& attention, const FieldNames& name) {
  const RopeSpec& rope = attention.rope;
  if (rope.halves && (rope.interleaved || 2 * rope.dim != attention.head_dim)) {
    return InvalidArgument("the halves of a head turn by " + std::to_string(rope.dim) +
                           " elements; a head has " + std::to_string(attention.head_dim));
  }
  if (rope.dim % 2 != 0 || rope.dim < 0 || rope.dim > attention.head_dim) {
    return InvalidArgument(std::to_string(rope.dim) + " of a head's " +
                           std::to_string(attention.head_dim) + " elements turn (" +
                           name("rope.dim") + "); it must be an even number up to " +
                           name("head_dim"));
  }
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("rope.theta"), rope.theta));
  return CheckScaling(rope.scaling, rope.dim / 2, name);
}

Status CheckAttention(const AttentionSpec& attention, const FieldNames& name) {
  TANDEM_RETURN_IF_ERROR(CheckNotNegative(name("attention.scale"), attention.scale));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative(name("soft_cap"), attention.soft_cap));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative(name("alibi_scale"), attention.alibi_scale));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative(name("window"), attention.window));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative(name("chunk"), attention.chunk));
  if (attention.window > 0 && attention.chunk > 0) {
    return InvalidArgument(name("window") + " and " + name("chunk") + " are both given");
  }
  TANDEM_RETURN_IF_ERROR(CheckLatents(attention, name));
  return CheckGrowth(attention.growth, name);
}

Status CheckLayer(const LayerSpec& layer, const FieldNames& name) {
  const AttentionSpec& attention = layer.attention;
  const std::string heads = name("num_heads"), kv_heads = name("num_kv_heads");
  TANDEM_RETURN_IF_ERROR(CheckRange(heads, attention.num_heads, kMaxHeads));
  TANDEM_RETURN_IF_ERROR(CheckRange(kv_heads, attention.num_kv_heads, kMaxHeads));
  TANDEM_RETURN_IF_ERROR(CheckRange(name("head_dim"), attention.head_dim, kMaxHeadDim));
  const bool has_experts = layer.moe != MoeSpec{};
  if (has_experts) TANDEM_RETURN_IF_ERROR(CheckMoe(layer.moe, name));
  if (layer.mlp.activation == ops::Activation::kClampedSwiglu) {
    return InvalidArgument("clamped_swiglu is a function of experts alone");
  }
  if (!has_experts || layer.mlp.intermediate_size != 0) {
    TANDEM_RETURN_IF_ERROR(
        CheckRange(name("intermediate_size"), layer.mlp.intermediate_size, kMaxWidth));
  }
  TANDEM_RETURN_IF_ERROR(
      CheckMultiple(heads, attention.num_heads, kv_heads, attention.num_kv_heads));
  TANDEM_RETURN_IF_ERROR(CheckRope(attention, name));
  TANDEM_RETURN_IF_ERROR(CheckAttention(attention, name));
  return CheckPositive(name("alpha"), layer.alpha);
}

Status CheckIds(const std::string& field, const std::vector<int32_t>& ids, int64_t vocab) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab) continue;
    return InvalidArgument(field + " holds " + std::to_string(id) + ", outside the vocabulary of " +
                           std::to_string(vocab));
  }
  return {};
}

Status CheckPrefix(const ModelSpec& spec, const FieldNames& name) {
  const PrefixSpec& prefix = spec.prefix;
  if (prefix.start_id < 0) {
    if (!spec.HasSecondPositions()) return {};
    return InvalidArgument("prefix: second positions are of models with prefix masks alone");
  }
  const std::string masks = name("prefix.mask_ids");
  if (prefix.mask_ids.empty()) return InvalidArgument(masks + " is empty");
  TANDEM_RETURN_IF_ERROR(CheckIds(name("prefix.start_id"), {prefix.start_id}, spec.vocab_size));
  return CheckIds(masks, prefix.mask_ids, spec.vocab_size);
}

Status CheckSchemes(const ModelSpec& spec, const FieldNames& name) {
  TANDEM_RETURN_IF_ERROR(CheckScheme(spec.quantization));
  for (const SchemeException& exception : spec.exceptions) {
    const WeightRow& row = RowOf(exception.role);
    const int64_t layers = row.per_layer ? spec.num_layers() : 1;
    if (row.pack == WeightPack::kNone || exception.layer < 0 || exception.layer >= layers) {
      return InvalidArgument("exceptions: there is no product \"" + std::string(row.hf_name) +
                             "\" in layer " + std::to_string(exception.layer));
    }
    TANDEM_RETURN_IF_ERROR(CheckScheme(exception.scheme));
  }
  for (const WeightRow& row : WeightRows()) {
    const int64_t layers = row.per_layer ? spec.num_layers() : 1;
    for (int64_t layer = 0; layer < layers && row.columns != nullptr; ++layer) {
      const int64_t together = SchemeOf(spec, row.role, layer).elements_per_byte();
      if (row.columns(spec, layer) % together == 0) continue;
      return InvalidArgument(
          "quantization: of elements of 4 bits a row has an even number, but \"" +
          std::string(row.hf_name) + "\" has " + std::to_string(row.columns(spec, layer)) + " (" +
          name("hidden_size") + ", " + name("intermediate_size") + " and " + name("head_dim") +
          " make that)");
    }
  }
  return {};
}

}  // namespace

bool ModelSpec::HasSecondPositions() const {
  const auto has = [](const LayerSpec& layer) { return layer.attention.rope.halves; };
  return second_position_rows > 0 || std::ranges::any_of(layers, has) ||
         std::ranges::any_of(other_layers, has);
}

int64_t ModelSpec::DefaultPositions() const {
  int64_t positions = max_positions;
  for (const auto* of_stages : {&layers, &other_layers}) {
    for (const LayerSpec& layer : *of_stages) {
      const RopeScaling& scaling = layer.attention.rope.scaling;
      if (scaling.kind != RopeScaling::Kind::kDynamic) continue;
      positions = std::min(positions, scaling.original_max_positions);
    }
  }
  return positions;
}

int64_t ModelSpec::KvBytesPerToken(DType kv_dtype) const {
  int64_t elements = 0;
  for (const LayerSpec& layer : layers) elements += layer.attention.cached_elements();
  return elements * static_cast<int64_t>(SizeOf(kv_dtype));
}

std::string FieldKey(std::string_view field) { return std::string(field); }

Status ValidateSpec(const ModelSpec& spec, const FieldNames& name) {
  TANDEM_RETURN_IF_ERROR(CheckRange(name("vocab_size"), spec.vocab_size, kMaxVocab));
  TANDEM_RETURN_IF_ERROR(CheckRange(name("hidden_size"), spec.hidden_size, kMaxWidth));
  TANDEM_RETURN_IF_ERROR(CheckRange(name("max_positions"), spec.max_positions, kMaxPositions));
  if (spec.place.has_layers()) {
    TANDEM_RETURN_IF_ERROR(CheckRange(name("num_layers"), spec.num_layers(), kMaxLayers));
  }
  for (int64_t i = 0; i < spec.num_layers(); ++i) {
    if (i > 0 && spec.layer(i) == spec.layer(i - 1)) continue;
    const Status status = CheckLayer(spec.layer(i), name);
    if (!status.ok()) return i == 0 ? status : status.Annotate("layer " + std::to_string(i));
  }
  if (spec.dtype != DType::kF32 && spec.dtype != DType::kF16 && spec.dtype != DType::kBF16) {
    return InvalidArgument(name("dtype") + " is " + std::string(DTypeName(spec.dtype)) +
                           "; it must be float32, float16 or bfloat16");
  }
  TANDEM_RETURN_IF_ERROR(CheckSchemes(spec, name));
  if (spec.cache_scales && spec.has_latents()) {
    return InvalidArgument("cache_scales: latents have no scales");
  }
  if (spec.cache_scales && *spec.cache_scales != DType::kF8E4M3 &&
      *spec.cache_scales != DType::kI8) {
    return InvalidArgument("cache_scales are for a cache in " +
                           std::string(DTypeName(*spec.cache_scales)) + "; it must be fp8 or int8");
  }
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("norm.epsilon"), spec.norm.epsilon));
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("embedding_scale"), spec.embedding_scale));
  TANDEM_RETURN_IF_ERROR(CheckPositive(name("logit_scale"), spec.logit_scale));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative(name("logit_cap"), spec.logit_cap));
  for (const auto& [field, rows] : {std::pair("position_rows", spec.position_rows),
                                    std::pair("second_position_rows", spec.second_position_rows)}) {
    if (rows == 0) continue;
    TANDEM_RETURN_IF_ERROR(CheckRange(name(field), rows, kMaxPositions));
    if (spec.max_positions > rows) {
      return InvalidArgument(name("max_positions") + " is " + std::to_string(spec.max_positions) +
                             ", but only " + std::to_string(rows) + " positions were learned");
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckPrefix(spec, name));
  TANDEM_RETURN_IF_ERROR(CheckIds(name("bos_ids"), spec.bos_ids, spec.vocab_size));
  return CheckIds(name("eos_ids"), spec.eos_ids, spec.vocab_size);
}

bool ModelSpec::has_latents() const {
  return std::ranges::any_of(layers,
                             [](const LayerSpec& layer) { return layer.attention.has_latents(); });
}

bool ModelSpec::has_experts() const {
  return std::ranges::any_of(layers,
                             [](const LayerSpec& layer) { return layer.moe.num_experts > 0; });
}

Status CheckCacheScales(const ModelSpec& spec, DType cache) {
  if (cache != DType::kI8 || spec.cache_scales == DType::kI8) return {};
  if (spec.has_latents()) {
    return Unimplemented("kv_cache_dtype int8: latents (" + spec.architecture +
                         ") have no scales; use fp8, which needs none");
  }
  return FailedPrecondition(
      "kv_cache_dtype int8: the model has no scales of keys and values for int8; make a checkpoint "
      "that has them with tandem quantize --kv_cache_dtype int8, or use fp8, which needs none");
}

}  // namespace tandem
