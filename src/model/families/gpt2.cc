#include "model/families/gpt2.h"

#include <array>
#include <cmath>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kGpt2 = {"GPT2LMHeadModel"};
// The second where gpt_model_version says so.
constexpr std::array<std::string_view, 2> kSantaCoder = {"GPT2LMHeadCustomModel",
                                                         "GPT2LMHeadModel"};
constexpr std::array<std::string_view, 1> kGptBigCode = {"GPTBigCodeForCausalLM"};

constexpr std::string_view kVersion = "gpt_model_version";
constexpr std::array<std::string_view, 1> kGpt2Versions = {"gpt2"};
constexpr std::array<std::string_view, 1> kSantaCoderVersions = {"santacoder"};
constexpr std::array<std::string_view, 2> kGptBigCodeVersions = {"starcoder", "santacoder"};

constexpr std::array<RoleName, 12> kNames = {{
    {WeightRole::kEmbedding, "transformer.wte"},
    {WeightRole::kPositions, "transformer.wpe"},
    {WeightRole::kInputNorm, "transformer.h.{}.ln_1"},
    {WeightRole::kQuery, "transformer.h.{}.attn.c_attn"},
    {WeightRole::kKey, "transformer.h.{}.attn.c_attn"},
    {WeightRole::kValue, "transformer.h.{}.attn.c_attn"},
    {WeightRole::kAttentionOut, "transformer.h.{}.attn.c_proj"},
    {WeightRole::kPostNorm, "transformer.h.{}.ln_2"},
    {WeightRole::kUp, "transformer.h.{}.mlp.c_fc"},
    {WeightRole::kDown, "transformer.h.{}.mlp.c_proj"},
    {WeightRole::kFinalNorm, "transformer.ln_f"},
    {WeightRole::kHead, "lm_head"},
}};
constexpr std::array<RoleName, 3> kSantaCoderNames = {{
    {WeightRole::kQuery, "transformer.h.{}.attn.q_attn"},
    {WeightRole::kKey, "transformer.h.{}.attn.kv_attn"},
    {WeightRole::kValue, "transformer.h.{}.attn.kv_attn"},
}};

bool IsLayerProduct(WeightRole role) { return RowOf(role).per_layer && RowOf(role).columns; }
bool IsQkv(WeightRole role) { return RowOf(role).pack == WeightPack::kQkv; }

TensorSource Gpt2Source(const ModelSpec& spec, const WeightId& id) {
  TensorSource source = StackedQkvSource(spec, id, kNames);
  source.transposed = IsLayerProduct(id.role);
  return source;
}

TensorSource SantaCoderSource(const ModelSpec& spec, const WeightId& id) {
  if (!IsQkv(id.role)) return Gpt2Source(spec, id);
  TensorSource source = NamedSource(spec, id, kSantaCoderNames);
  source.transposed = true;
  const int64_t rows = spec.layer(id.layer).attention.kv_rows();
  if (id.role != WeightRole::kQuery) {
    source.rows = RowRange(id.role == WeightRole::kKey ? 0 : rows, rows, 2 * rows);
  }
  return source;
}

TensorSource GptBigCodeSource(const ModelSpec& spec, const WeightId& id) {
  const AttentionSpec& attention = spec.layer(id.layer).attention;
  const bool grouped = attention.num_kv_heads == attention.num_heads;
  return grouped ? GroupedQkvSource(spec, id, kNames) : StackedQkvSource(spec, id, kNames);
}

// Learned positions, layer norms with biases, MLPs without a gate, biases everywhere.
void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.hidden = "n_embd",
             .layers = "n_layer",
             .heads = "n_head",
             .kv_heads = "n_head",
             .intermediate = "n_inner",
             .positions = "n_positions",
             .epsilon = "layer_norm_epsilon",
             .default_positions = 1024,
             .default_epsilon = 1e-5,
             .default_tied = true,
             .default_intermediate = true},
            spec);
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = true;
  spec.position_rows = spec.max_positions;
  if (!config.Bool("scale_attn_weights", true)) Refuse(config, "scale_attn_weights", "");
  const ops::Activation activation = ReadActivation(config, "activation_function", "gelu_new");
  const bool by_layer = config.Bool("scale_attn_by_inverse_layer_idx", false);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.attention.qkv_bias = layer.attention.out_bias = layer.mlp.bias = true;
    layer.mlp.gated = false;
    layer.mlp.activation = activation;
    if (!by_layer) continue;
    const double head = std::sqrt(static_cast<double>(layer.attention.head_dim));
    layer.attention.scale = 1.0 / (head * static_cast<double>(i + 1));
  }
}

void ReadSantaCoder(const JsonFields& config, ModelSpec& spec) {
  Read(config, spec);
  if (config.Text("attention_head_type", "multiquery") != "multiquery") {
    Refuse(config, "attention_head_type", "; it must be multiquery");
  }
  ForEachLayer(spec, [](LayerSpec& layer) { layer.attention.num_kv_heads = 1; });
}

bool ClaimsSantaCoder(const JsonFields& config) {
  return config.Text(kVersion, "") == kSantaCoderVersions.front();
}

void ReadGptBigCode(const JsonFields& config, ModelSpec& spec) {
  Read(config, spec);
  const ops::Activation activation =
      ReadActivation(config, "activation_function", "gelu_pytorch_tanh");
  const bool one_head = config.Bool("multi_query", true);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.mlp.activation = activation;
    if (one_head) layer.attention.num_kv_heads = 1;
  });
}

}  // namespace

Family Gpt2Family() {
  return {.name = "gpt2",
          .architectures = kGpt2,
          .read = Read,
          .source = Gpt2Source,
          .version_option = kVersion,
          .versions = kGpt2Versions,
          .optional_prefix = "transformer."};
}
Family SantaCoderFamily() {
  return {.name = "santacoder",
          .architectures = kSantaCoder,
          .read = ReadSantaCoder,
          .source = SantaCoderSource,
          .claims = ClaimsSantaCoder,
          .version_option = kVersion,
          .versions = kSantaCoderVersions};
}
Family GptBigCodeFamily() {
  return {.name = "gpt_bigcode",
          .architectures = kGptBigCode,
          .read = ReadGptBigCode,
          .source = GptBigCodeSource,
          .version_option = kVersion,
          .versions = kGptBigCodeVersions};
}

}  // namespace tandem
