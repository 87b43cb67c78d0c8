#include "model/features.h"

#include <algorithm>

namespace tandem {

std::vector<ops::Feature> FeaturesOf(const ModelSpec& spec) {
  using enum ops::Feature;
  std::vector<ops::Feature> features;
  const auto add = [&](bool has, ops::Feature feature) {
    if (has && std::ranges::find(features, feature) == features.end()) features.push_back(feature);
  };
  const bool plain_norms =
      spec.norm.kind == NormSpec::Kind::kRms && !spec.norm.bias && spec.norm.weight_offset == 0.0;
  add(!plain_norms, kNorms);
  add(spec.prefix.start_id >= 0, kPrefixMask);
  add(spec.logit_scale != 1.0 || spec.logit_cap != 0.0, kLogits);
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    add(layer.residual != Residual::kPreNorm, kResidual);
    add(attention.head_norm != HeadNorm::kNone, kHeadNorms);
    add(attention.has_latents(), kLatents);
    const int64_t parts = attention.rope.halves ? 2 : 1;
    add(parts * attention.rope.dim != attention.head_dim && !attention.has_latents(), kPartialRope);
    add(attention.soft_cap != 0.0 || attention.window != 0 || attention.alibi_scale != 0.0,
        kAttentionRule);
    add(attention.chunk != 0, kChunks);
    add(attention.sinks, kSinks);
    add(attention.growth.kind != QueryGrowth::Kind::kNone, kQueryFactors);
    add(layer.moe.num_experts > 0, kExperts);
    add(!layer.mlp.gated || layer.mlp.activation != ops::Activation::kSilu, kActivation);
  }
  return features;
}

}  // namespace tandem
