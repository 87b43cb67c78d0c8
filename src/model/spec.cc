#include "model/spec.h"

#include <algorithm>
#include <cmath>

#include "model/weight_roles.h"

namespace tandem {
namespace {

// Far above every published model, low enough that products of three fit in 63 bits.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHeads = 4096;

Status CheckRange(const char* field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return {};
  return InvalidArgument(std::string(field) + " is " + std::to_string(value) +
                         "; it must be between 1 and " + std::to_string(max));
}

Status CheckPositive(const char* field, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return InvalidArgument(std::string(field) + " is " + std::to_string(value) +
                         "; it must be a positive number");
}

Status CheckFactors(const char* field, const std::vector<double>& factors, int64_t pairs) {
  if (static_cast<int64_t>(factors.size()) != pairs) {
    return InvalidArgument(std::string(field) + " has " + std::to_string(factors.size()) +
                           " numbers; there must be one for each of the " + std::to_string(pairs) +
                           " pairs that turn");
  }
  for (const double factor : factors) TANDEM_RETURN_IF_ERROR(CheckPositive(field, factor));
  return {};
}

Status CheckScaling(const RopeScaling& scaling, int64_t pairs) {
  if (scaling.kind == RopeScaling::Kind::kNone) return {};
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.factor", scaling.factor));
  if (scaling.factor < 1.0) return InvalidArgument("rope_scaling.factor must be at least 1");
  TANDEM_RETURN_IF_ERROR(CheckRange("rope_scaling.original_max_positions",
                                    scaling.original_max_positions, kMaxPositions));
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.attention_factor", scaling.attention_factor));
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.beta_slow", scaling.beta_slow));
    return CheckPositive("rope_scaling.beta_fast", scaling.beta_fast);
  }
  if (scaling.kind == RopeScaling::Kind::kLongRope) {
    TANDEM_RETURN_IF_ERROR(CheckFactors("rope_scaling.short_factor", scaling.short_factors, pairs));
    return CheckFactors("rope_scaling.long_factor", scaling.long_factors, pairs);
  }
  if (scaling.kind != RopeScaling::Kind::kLlama3) return {};
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.low_freq_factor", scaling.low_freq_factor));
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.high_freq_factor", scaling.high_freq_factor));
  if (scaling.low_freq_factor <= scaling.high_freq_factor) return {};
  return InvalidArgument("rope_scaling.low_freq_factor must not be above high_freq_factor");
}

Status CheckGrowth(const QueryGrowth& growth) {
  if (growth.kind == QueryGrowth::Kind::kNone) return {};
  // The logarithm of 1 is 0.
  if (growth.length < 2 || growth.length > kMaxPositions) {
    return InvalidArgument("query_growth.length is " + std::to_string(growth.length) +
                           "; it must be between 2 and " + std::to_string(kMaxPositions));
  }
  if (growth.factor >= 0.0 && std::isfinite(growth.factor)) return {};
  return InvalidArgument("query_growth.factor is " + std::to_string(growth.factor) +
                         "; it cannot be negative");
}

Status CheckLatents(const AttentionSpec& attention) {
  const LatentSpec& latent = attention.latent;
  if (!attention.has_latents()) {
    if (latent.rank == 0) return {};
    return InvalidArgument("kv_lora_rank is " + std::to_string(latent.rank) +
                           "; it cannot be negative");
  }
  TANDEM_RETURN_IF_ERROR(CheckRange("kv_lora_rank", latent.rank, kMaxHeadDim));
  TANDEM_RETURN_IF_ERROR(CheckRange("qk_nope_head_dim", latent.key_dim, kMaxHeadDim));
  TANDEM_RETURN_IF_ERROR(CheckRange("v_head_dim", latent.value_dim, kMaxHeadDim));
  if (latent.query_rank != 0) {
    TANDEM_RETURN_IF_ERROR(CheckRange("q_lora_rank", latent.query_rank, kMaxWidth));
  }
  TANDEM_RETURN_IF_ERROR(CheckPositive("latent norm_epsilon", latent.norm_epsilon));
  TANDEM_RETURN_IF_ERROR(CheckPositive("attention scale", attention.scale));
  if (attention.num_kv_heads != 1 || attention.head_dim != latent.rank + attention.rope.dim) {
    return InvalidArgument("the cache of latents has " + std::to_string(attention.num_kv_heads) +
                           " heads of " + std::to_string(attention.head_dim) +
                           " elements; it must be one of kv_lora_rank (" +
                           std::to_string(latent.rank) + ") and qk_rope_head_dim, all of which " +
                           "turns (rotary_dim " + std::to_string(attention.rope.dim) + ")");
  }
  const bool plain = attention.head_norm == HeadNorm::kNone && attention.alibi_scale == 0.0 &&
                     attention.growth.kind == QueryGrowth::Kind::kNone;
  if (plain) return {};
  return InvalidArgument("attention over latents has no norms of heads, no alibi and no growth");
}

Status CheckMoe(const MoeSpec& moe) {
  const ops::RoutingRule& rule = moe.routing;
  TANDEM_RETURN_IF_ERROR(CheckRange("num_experts", moe.num_experts, ops::kMaxExperts));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("expert intermediate_size", moe.expert.intermediate_size, kMaxWidth));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_groups", rule.num_groups, moe.num_experts));
  TANDEM_RETURN_IF_ERROR(CheckRange("chosen_groups", rule.chosen_groups, rule.num_groups));
  if (moe.num_experts % rule.num_groups != 0) {
    return InvalidArgument("num_experts (" + std::to_string(moe.num_experts) +
                           ") must be a multiple of num_groups (" +
                           std::to_string(rule.num_groups) + ")");
  }
  const int64_t choices = rule.others_count_zero
                              ? moe.num_experts
                              : moe.num_experts / rule.num_groups * rule.chosen_groups;
  TANDEM_RETURN_IF_ERROR(CheckRange("experts_per_token", rule.experts_per_token,
                                    std::min<int64_t>(choices, ops::kMaxExpertsPerToken)));
  if (moe.expert.activation == ops::Activation::kClampedSwiglu) {
    TANDEM_RETURN_IF_ERROR(CheckPositive("swiglu_limit", moe.limit));
    if (!moe.expert.gated) return InvalidArgument("experts with clamped_swiglu must be gated");
  }
  return CheckPositive("routing scale", rule.scale);
}

Status CheckLayer(const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  TANDEM_RETURN_IF_ERROR(CheckRange("num_heads", attention.num_heads, kMaxHeads));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_kv_heads", attention.num_kv_heads, kMaxHeads));
  TANDEM_RETURN_IF_ERROR(CheckRange("head_dim", attention.head_dim, kMaxHeadDim));
  const bool has_experts = layer.moe.num_experts != 0;
  if (has_experts) TANDEM_RETURN_IF_ERROR(CheckMoe(layer.moe));
  if (layer.mlp.activation == ops::Activation::kClampedSwiglu) {
    return InvalidArgument("clamped_swiglu is a function of experts alone");
  }
  if (!has_experts || layer.mlp.intermediate_size != 0) {
    TANDEM_RETURN_IF_ERROR(CheckRange("intermediate_size", layer.mlp.intermediate_size, kMaxWidth));
  }
  if (attention.num_heads % attention.num_kv_heads != 0) {
    return InvalidArgument("num_heads (" + std::to_string(attention.num_heads) +
                           ") must be a multiple of num_kv_heads (" +
                           std::to_string(attention.num_kv_heads) + ")");
  }
  const RopeSpec& rope = attention.rope;
  if (rope.halves && (rope.interleaved || 2 * rope.dim != attention.head_dim)) {
    return InvalidArgument("the halves of a head turn by " + std::to_string(rope.dim) +
                           " elements; a head has " + std::to_string(attention.head_dim));
  }
  if (rope.dim % 2 != 0 || rope.dim < 0 || rope.dim > attention.head_dim) {
    return InvalidArgument(std::to_string(rope.dim) + " of a head's " +
                           std::to_string(attention.head_dim) +
                           " elements turn (rotary_dim); it must be an even number up to head_dim");
  }
  for (const auto& [field, value] : {std::pair("attention scale", attention.scale),
                                     std::pair("attn_logit_softcapping", attention.soft_cap),
                                     std::pair("alibi scale", attention.alibi_scale),
                                     std::pair("sliding_window", double(attention.window)),
                                     std::pair("attention_chunk_size", double(attention.chunk))}) {
    if (!(value >= 0 && std::isfinite(value))) {
      return InvalidArgument(std::string(field) + " is " + std::to_string(value) +
                             "; it cannot be negative");
    }
  }
  if (attention.window > 0 && attention.chunk > 0) {
    return InvalidArgument("sliding_window and attention_chunk_size are both given");
  }
  TANDEM_RETURN_IF_ERROR(CheckLatents(attention));
  TANDEM_RETURN_IF_ERROR(CheckGrowth(attention.growth));
  TANDEM_RETURN_IF_ERROR(CheckPositive("residual alpha", layer.alpha));
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_theta", rope.theta));
  return CheckScaling(rope.scaling, rope.dim / 2);
}

Status CheckIds(const char* field, const std::vector<int32_t>& ids, int64_t vocab) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab) continue;
    return InvalidArgument(std::string(field) + " holds " + std::to_string(id) +
                           ", outside the vocabulary of " + std::to_string(vocab));
  }
  return {};
}

Status CheckPrefix(const ModelSpec& spec) {
  const PrefixSpec& prefix = spec.prefix;
  if (prefix.start_id < 0) {
    if (!spec.HasSecondPositions()) return {};
    return InvalidArgument("prefix: second positions are of models with prefix masks alone");
  }
  if (prefix.mask_ids.empty()) return InvalidArgument("prefix.mask_ids is empty");
  TANDEM_RETURN_IF_ERROR(CheckIds("prefix.start_id", {prefix.start_id}, spec.vocab_size));
  return CheckIds("prefix.mask_ids", prefix.mask_ids, spec.vocab_size);
}

Status CheckSchemes(const ModelSpec& spec) {
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
          std::string(row.hf_name) + "\" has " + std::to_string(row.columns(spec, layer)) +
          " (hidden_size, intermediate_size and head_dim make that)");
    }
  }
  return {};
}

}  // namespace

bool ModelSpec::HasSecondPositions() const {
  return second_position_rows > 0 || std::ranges::any_of(layers, [](const LayerSpec& layer) {
           return layer.attention.rope.halves;
         });
}

int64_t ModelSpec::DefaultPositions() const {
  int64_t positions = max_positions;
  for (const LayerSpec& layer : layers) {
    const RopeScaling& scaling = layer.attention.rope.scaling;
    if (scaling.kind != RopeScaling::Kind::kDynamic) continue;
    positions = std::min(positions, scaling.original_max_positions);
  }
  return positions;
}

int64_t ModelSpec::KvBytesPerToken(DType kv_dtype) const {
  int64_t elements = 0;
  for (const LayerSpec& layer : layers) elements += layer.attention.cached_elements();
  return elements * static_cast<int64_t>(SizeOf(kv_dtype));
}

Status ValidateSpec(const ModelSpec& spec) {
  TANDEM_RETURN_IF_ERROR(CheckRange("vocab_size", spec.vocab_size, kMaxVocab));
  TANDEM_RETURN_IF_ERROR(CheckRange("hidden_size", spec.hidden_size, kMaxWidth));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_layers", spec.num_layers(), kMaxLayers));
  for (int64_t i = 0; i < spec.num_layers(); ++i) {
    if (i > 0 && spec.layer(i) == spec.layer(i - 1)) continue;
    const Status status = CheckLayer(spec.layer(i));
    if (!status.ok()) return i == 0 ? status : status.Annotate("layer " + std::to_string(i));
  }
  TANDEM_RETURN_IF_ERROR(CheckRange("max_positions", spec.max_positions, kMaxPositions));
  if (spec.dtype != DType::kF32 && spec.dtype != DType::kF16 && spec.dtype != DType::kBF16) {
    return InvalidArgument("dtype is " + std::string(DTypeName(spec.dtype)) +
                           "; it must be float32, float16 or bfloat16");
  }
  TANDEM_RETURN_IF_ERROR(CheckSchemes(spec));
  if (spec.cache_scales && spec.has_latents()) {
    return InvalidArgument("cache_scales: latents have no scales");
  }
  if (spec.cache_scales && *spec.cache_scales != DType::kF8E4M3 &&
      *spec.cache_scales != DType::kI8) {
    return InvalidArgument("cache_scales are for a cache in " +
                           std::string(DTypeName(*spec.cache_scales)) + "; it must be fp8 or int8");
  }
  TANDEM_RETURN_IF_ERROR(CheckPositive("norm_epsilon", spec.norm.epsilon));
  TANDEM_RETURN_IF_ERROR(CheckPositive("embedding_scale", spec.embedding_scale));
  TANDEM_RETURN_IF_ERROR(CheckPositive("logit_scale", spec.logit_scale));
  if (!(spec.logit_cap >= 0.0 && std::isfinite(spec.logit_cap))) {
    return InvalidArgument("logit_cap is " + std::to_string(spec.logit_cap) +
                           "; it cannot be negative");
  }
  for (const auto& [field, rows] : {std::pair("position_rows", spec.position_rows),
                                    std::pair("second_position_rows", spec.second_position_rows)}) {
    if (rows == 0) continue;
    TANDEM_RETURN_IF_ERROR(CheckRange(field, rows, kMaxPositions));
    if (spec.max_positions > rows) {
      return InvalidArgument("max_positions is " + std::to_string(spec.max_positions) +
                             ", but only " + std::to_string(rows) + " positions were learned");
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckPrefix(spec));
  TANDEM_RETURN_IF_ERROR(CheckIds("bos_ids", spec.bos_ids, spec.vocab_size));
  return CheckIds("eos_ids", spec.eos_ids, spec.vocab_size);
}

bool ModelSpec::has_latents() const {
  return std::ranges::any_of(layers,
                             [](const LayerSpec& layer) { return layer.attention.has_latents(); });
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
