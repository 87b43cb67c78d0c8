#include "model/kv_pool.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace tandem {
namespace {

void SetScales(const KvScales& scales, ops::KvGroup& group) {
  const Shape shape{group.num_layers, group.num_kv_heads};
  group.key_scales = scales.keys.View(DType::kF32, shape);
  group.value_scales = scales.values.View(DType::kF32, shape);
}

}  // namespace

std::vector<KvGroupSpec> KvGroupsOf(const ModelSpec& spec) {
  std::vector<KvGroupSpec> groups;
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    const AttentionSpec& attention = spec.layer(layer).attention;
    auto group = std::ranges::find_if(groups, [&](const KvGroupSpec& other) {
      return other.num_kv_heads == attention.num_kv_heads && other.head_dim == attention.head_dim &&
             other.latent_dim == attention.latent.rank && other.windowed == (attention.reach() > 0);
    });
    if (group == groups.end()) {
      group = groups.insert(group, {.num_kv_heads = attention.num_kv_heads,
                                    .head_dim = attention.head_dim,
                                    .latent_dim = attention.latent.rank,
                                    .windowed = attention.reach() > 0,
                                    .layers = {}});
    }
    group->layers.push_back(layer);
  }
  return groups;
}

int64_t KvBytesPerToken(const ModelSpec& spec, DType stored, bool windowed) {
  ModelSpec part = spec;
  std::erase_if(part.layers,
                [&](const LayerSpec& layer) { return (layer.attention.reach() > 0) != windowed; });
  return part.KvBytesPerToken(stored);
}

int64_t LongestWindow(const ModelSpec& spec) {
  int64_t longest = 0;
  for (const auto* layers : {&spec.layers, &spec.other_layers}) {
    for (const LayerSpec& layer : *layers) longest = std::max(longest, layer.attention.reach());
  }
  return longest;
}

int64_t MaxKvBlocks(const ModelSpec& spec, int32_t block_tokens) {
  constexpr int64_t kMaxRows = (int64_t{1} << 32) - 2;
  int64_t blocks = std::numeric_limits<int32_t>::max();
  for (const KvGroupSpec& group : KvGroupsOf(spec)) {
    const int64_t planes = group.latent_dim == 0 ? 2 : 1;
    const int64_t block_rows =
        planes * static_cast<int64_t>(group.layers.size()) * group.num_kv_heads * block_tokens;
    blocks = std::min(blocks, kMaxRows / block_rows);
  }
  return blocks;
}

Result<OwnedKvPool> MakeKvPool(const ModelSpec& spec, DType stored, int64_t num_blocks,
                               int32_t block_tokens, ops::Backend& backend,
                               std::span<const KvScales> scales, int64_t num_window_blocks) {
  TANDEM_CHECK(num_blocks <= MaxKvBlocks(spec, block_tokens),
               std::to_string(num_blocks) + " blocks are more than a pool may have");
  OwnedKvPool owned;
  ops::KvPool& pool = owned.pool;
  pool.layers.resize(spec.layers.size());
  for (const KvGroupSpec& group_spec : KvGroupsOf(spec)) {
    const auto index = static_cast<int32_t>(pool.groups.size());
    ops::KvGroup group;
    group.windowed = group_spec.windowed && num_window_blocks > 0;
    group.num_blocks = group.windowed ? num_window_blocks : num_blocks;
    group.num_layers = static_cast<int32_t>(group_spec.layers.size());
    group.num_kv_heads = static_cast<int32_t>(group_spec.num_kv_heads);
    group.block_tokens = block_tokens;
    group.head_dim = static_cast<int32_t>(group_spec.head_dim);
    group.latent_dim = static_cast<int32_t>(group_spec.latent_dim);
    for (int32_t i = 0; i < group.num_layers; ++i) {
      pool.layers[static_cast<size_t>(group_spec.layers[static_cast<size_t>(i)])] = {index, i};
    }
    const int64_t elements = group.num_blocks * group.elements_per_block();
    TANDEM_ASSIGN_OR_RETURN(Buffer memory,
                            backend.Allocate(static_cast<size_t>(elements) * SizeOf(stored)));
    group.data = memory.View(stored, {elements});
    if (group.has_8_bits() && !scales.empty()) {
      SetScales(scales[static_cast<size_t>(index)], group);
    }
    owned.memory.push_back(std::move(memory));
    pool.groups.push_back(std::move(group));
  }
  if (num_window_blocks > 0) {
    TANDEM_ASSIGN_OR_RETURN(Buffer window_of,
                            backend.Allocate(static_cast<size_t>(num_blocks) * sizeof(int32_t)));
    pool.window_of = window_of.As<int32_t>();
    owned.memory.push_back(std::move(window_of));
  }
  return owned;
}

}  // namespace tandem
