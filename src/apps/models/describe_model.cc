#include "apps/models/describe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "checkpoint/hf_writer.h"
#include "model/weight_roles.h"
#include "quantize/layer_inputs.h"

namespace tandem::apps {
namespace {

// Weights that are stored unlike most: "mlp.down_proj: not quantized", " (layers 0, 5)".
std::map<std::string, std::string> ExceptionsOf(const ModelSpec& spec) {
  std::map<std::string, std::string> layers;
  for (const SchemeException& weight : spec.exceptions) {
    const WeightRow& row = RowOf(weight.role);
    std::string& list = layers[fmt::format("{}: {}", row.hf_name, DescribeScheme(weight.scheme))];
    if (!row.per_layer) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(weight.layer);
  }
  for (auto& [what, list] : layers) {
    if (!list.empty()) list = " (layers " + list + ")";
  }
  return layers;
}

// How a layer knows where a token stands: "rotary, base 500000, llama3 scaling by 8".
std::string PositionsOf(const ModelSpec& spec, const AttentionSpec& attention) {
  if (attention.rope.dim == 0) {
    if (attention.alibi_scale > 0.0) return "ALiBi";
    return spec.position_rows > 0 ? "learned" : "none";
  }
  const RopeScaling& scaling = attention.rope.scaling;
  std::string text = fmt::format("rotary, base {}", attention.rope.theta);
  if (scaling.kind != RopeScaling::Kind::kNone) {
    text += fmt::format(", {} scaling", ScalingName(scaling.kind));
    if (scaling.factor != 1.0) text += fmt::format(" by {}", scaling.factor);
  }
  return text;
}

// Which keys a layer's rows see: "the last 4096 keys".
std::string SightOf(const ModelSpec& spec, const AttentionSpec& attention) {
  if (spec.prefix.start_id >= 0) return "a prefix both ways, then all before";
  if (attention.chunk > 0) return fmt::format("chunks of {} keys", attention.chunk);
  if (attention.window > 0) return fmt::format("the last {} keys", attention.window);
  return "all keys before";
}

// A line for each value that layers have, and of how many where they differ.
void SayOfLayers(std::string_view label, const ModelSpec& spec,
                 std::string (*describe)(const ModelSpec&, const AttentionSpec&),
                 const Console& console) {
  std::vector<std::pair<std::string, int64_t>> values;
  for (const LayerSpec& layer : spec.layers) {
    const std::string value = describe(spec, layer.attention);
    const auto found = std::ranges::find(values, value, &std::pair<std::string, int64_t>::first);
    if (found == values.end()) {
      values.emplace_back(value, 1);
    } else {
      ++found->second;
    }
  }
  for (const auto& [value, layers] : values) {
    const std::string_view unit = layers == 1 ? "layer" : "layers";
    const std::string where = values.size() == 1 ? "" : fmt::format(" in {} {}", layers, unit);
    console.Say(fmt::format("{:13} {}{}", label, value, where));
  }
}

// What can be done with it. Every family computes on every backend, as target and as draft.
void SaySupport(const ModelSource& source, const ConfigOptions& config, const Console& console,
                nlohmann::ordered_json& json) {
  const ModelSpec& spec = source.spec();
  console.Say(
      "runs          on CPUs (bfloat16, float16, float32) and GPUs (bfloat16, float16), as target "
      "or draft");
  if (source.kind != ModelSource::Kind::kHuggingFace) return;
  const bool is_plain = spec.quantization.is_plain() && spec.exceptions.empty();
  const Status calibrated = is_plain ? CheckCalibrated(spec) : Status();
  const Status exported = CheckHfFolder(spec, {.path = source.path, .options = config});
  std::string quantize = "every --qformat";
  if (!is_plain) {
    quantize = "is quantized already";
  } else if (!calibrated.ok()) {
    quantize = calibrated.message();
  }
  console.Say("quantize      " + quantize);
  if (is_plain) {
    console.Say("exports       " +
                (exported.ok() ? "a checkpoint or, with --export_format hf, a Hugging Face folder"
                               : "a checkpoint; " + exported.message()));
  }
  json["quantize"] = quantize;
}

}  // namespace

nlohmann::ordered_json DescribeModel(const ModelSource& source, const ConfigOptions& config,
                                     const Console& console) {
  const ModelSpec& spec = source.spec();
  console.Say(fmt::format("{}: {}", Printable(source.path.string()), KindName(source.kind)));
  console.Say(fmt::format(
      "architecture  {}, {}{}", spec.architecture, DTypeName(spec.dtype),
      spec.quantization.is_plain() ? "" : ", layers in " + DescribeScheme(spec.quantization)));
  for (const auto& [what, layers] : ExceptionsOf(spec)) {
    console.Say(fmt::format("exceptions    {}{}", what, layers));
  }
  console.Say(fmt::format("parameters    {:.1f} M in {} layers", NumParameters(spec) / 1e6,
                          spec.num_layers()));
  const AttentionSpec& attention = spec.layers.front().attention;
  const MlpSpec& mlp = spec.layers.front().mlp;
  if (const LatentSpec& latent = attention.latent; attention.has_latents()) {
    console.Say(fmt::format("attention     {} heads of {}, over latents of {} with {} that turn",
                            attention.num_heads, attention.query_dim(), latent.rank,
                            attention.rope.dim));
  } else {
    console.Say(fmt::format("attention     {} heads of {}, {} for keys and values",
                            attention.num_heads, attention.head_dim, attention.num_kv_heads));
  }
  SayOfLayers("positions", spec, PositionsOf, console);
  SayOfLayers("sees", spec, SightOf, console);
  console.Say(fmt::format("sizes         hidden {}, MLP {}, vocabulary {}, {} positions",
                          spec.hidden_size, mlp.intermediate_size, spec.vocab_size,
                          spec.max_positions));
  if (const LayerSpec& last = spec.layers.back(); last.moe.num_experts > 0) {
    console.Say(fmt::format("experts       {} of {} for each token, MLPs of {}",
                            last.moe.routing.experts_per_token, last.moe.num_experts,
                            last.moe.expert.intermediate_size));
  }
  console.Say(fmt::format("a token       reads {} of weights, keeps {} of keys and values",
                          FormatBytes(StepWeightBytes(spec)),
                          FormatBytes(spec.KvBytesPerToken(spec.dtype))));
  if (spec.cache_scales) {
    console.Say(fmt::format("cache scales  for keys and values in {}, of which a token keeps {}",
                            DTypeName(*spec.cache_scales),
                            FormatBytes(spec.KvBytesPerToken(*spec.cache_scales))));
  }
  std::string tokenizer = "none in the folder";
  if (!source.tokenizer_dir.empty()) {
    const Result<std::string> description = DescribeTokenizer(source.tokenizer_dir);
    tokenizer = description.ok() ? *description : description.status().message();
  }
  console.Say("tokenizer     " + Printable(tokenizer));
  nlohmann::ordered_json json{{"path", source.path.string()},
                              {"kind", KindName(source.kind)},
                              {"tokenizer", tokenizer},
                              {"spec", nlohmann::ordered_json::parse(SpecToJson(spec))},
                              {"parameters", NumParameters(spec)},
                              {"weight_bytes_per_token", StepWeightBytes(spec)},
                              {"kv_bytes_per_token", spec.KvBytesPerToken(spec.dtype)}};
  SaySupport(source, config, console, json);
  if (const std::optional<BuildLimits>& limits = source.limits) {
    console.Say(
        fmt::format("limits        {} sequences and {} tokens a step; {} tokens a sequence, "
                    "{} of a prompt, {} of a draft",
                    limits->max_batch_size, limits->max_num_tokens, limits->max_seq_len,
                    limits->max_input_len, limits->max_draft_len));
    json["limits"] = {{"max_batch_size", limits->max_batch_size},
                      {"max_num_tokens", limits->max_num_tokens},
                      {"max_seq_len", limits->max_seq_len},
                      {"max_input_len", limits->max_input_len},
                      {"max_draft_len", limits->max_draft_len}};
  }
  return json;
}

}  // namespace tandem::apps
