#include "model/hf_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tandem {
namespace {

// Kinds of layers in layer_types and rope_parameters.
constexpr const char* kFullAttention = "full_attention";
constexpr const char* kSlidingAttention = "sliding_attention";

// The context after linear or dynamic scaling has stretched it.
int64_t Stretched(const JsonFields& rope, std::string_view key, double factor,
                  int64_t max_positions) {
  const double stretched = static_cast<double>(max_positions) * factor;
  if (factor >= 1.0 && stretched <= static_cast<double>(kMaxPositions)) {
    return static_cast<int64_t>(stretched);
  }
  rope.Fail(key, rope.Shown(key) + " does not stretch the context of " +
                     std::to_string(max_positions) +
                     " positions to a sensible length; it must be at least 1");
  return max_positions;
}

void ReadYarn(const JsonFields& rope, int64_t original_positions, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kYarn;
  scaling.factor = rope.Number("factor");
  scaling.beta_fast = rope.Number("beta_fast", scaling.beta_fast);
  scaling.beta_slow = rope.Number("beta_slow", scaling.beta_slow);
  scaling.truncate = rope.Bool("truncate", true);
  scaling.original_max_positions = rope.Int("original_max_position_embeddings", original_positions);
  const bool has_scales = rope.Has("mscale") && rope.Has("mscale_all_dim");
  const double ratio = has_scales ? YarnScale(scaling.factor, rope.Number("mscale")) /
                                        YarnScale(scaling.factor, rope.Number("mscale_all_dim"))
                                  : YarnScale(scaling.factor, 1.0);
  scaling.attention_factor = rope.Number("attention_factor", ratio);
}

void ReadLongRope(const JsonFields& rope, int64_t original_positions, int64_t max_positions,
                  RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kLongRope;
  scaling.short_factors = rope.Numbers("short_factor");
  scaling.long_factors = rope.Numbers("long_factor");
  scaling.original_max_positions = rope.Int("original_max_position_embeddings", original_positions);
  const auto trained = static_cast<double>(scaling.original_max_positions);
  scaling.factor = rope.Number("factor", static_cast<double>(max_positions) / trained);
  const double stretch = std::log(scaling.factor) / std::log(trained);
  scaling.attention_factor =
      rope.Number("attention_factor", scaling.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + stretch));
}

}  // namespace

double YarnScale(double factor, double scale) {
  return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

std::optional<JsonFields> RopeObject(const JsonFields& config) {
  return config.Object(config.Has("rope_parameters") ? "rope_parameters" : "rope_scaling");
}

void Refuse(const JsonFields& config, std::string_view key, std::string_view why) {
  config.Fail(key, config.Shown(key) + " is not supported" + std::string(why));
}

DType ReadDType(const JsonFields& config) {
  const char* key = config.Has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = config.Text(key, "float32");
  const auto dtype = ParseDType(name);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)) {
    config.Fail(key, fmt::format("\"{}\" is not float32, float16 or bfloat16", name.substr(0, 40)));
    return DType::kF32;
  }
  return *dtype;
}

// The part of a head that turns.
int64_t RotaryDim(const JsonFields& config, int64_t head_dim) {
  const double share = config.Number("partial_rotary_factor", 1.0);
  if (share > 0.0 && share <= 1.0) {
    return static_cast<int64_t>(static_cast<double>(head_dim) * share);
  }
  Refuse(config, "partial_rotary_factor", "; it must be between 0 and 1");
  return head_dim;
}

RopeSpec ReadRope(const JsonFields& config, int64_t head_dim, int64_t& max_positions,
                  double default_theta) {
  RopeSpec spec;
  spec.theta = config.Number("rope_theta", default_theta);
  spec.dim = RotaryDim(config, head_dim);
  const auto rope = RopeObject(config);
  if (!rope) return spec;
  for (const char* kind : {kFullAttention, kSlidingAttention}) {
    if (rope->Has(kind)) rope->Fail(kind, "parameters by layer type are not supported");
  }
  if (rope->Has("partial_rotary_factor")) spec.dim = RotaryDim(*rope, head_dim);
  spec.theta = rope->Number("rope_theta", spec.theta);
  spec.scaling = ReadRopeScaling(
      *rope, config.Int("original_max_position_embeddings", max_positions), max_positions);
  return spec;
}

void ReadRopes(const JsonFields& config, ModelSpec& spec) {
  if (spec.layers.empty()) return;
  const RopeSpec rope =
      ReadRope(config, spec.layers.front().attention.head_dim, spec.max_positions);
  ForEachLayer(spec, [&](LayerSpec& layer) { layer.attention.rope = rope; });
}

void ReadRopesByKind(const JsonFields& config, const RopeBases& bases, ModelSpec& spec) {
  if (spec.layers.empty()) return;
  const int64_t head_dim = spec.layers.front().attention.head_dim;
  const auto kinds = config.Object("rope_parameters");
  const auto of_kind = [&](const char* kind) {
    RopeSpec rope = {.dim = head_dim};
    const auto own = kinds->Object(kind);
    if (!own) {
      kinds->Fail(kind, "is missing");
      return rope;
    }
    rope.dim = RotaryDim(*own, head_dim);
    rope.theta = own->Number("rope_theta");
    rope.scaling = ReadRopeScaling(*own, spec.max_positions, spec.max_positions);
    return rope;
  };
  const RopeSpec whole =
      kinds ? of_kind(kFullAttention) : ReadRope(config, head_dim, spec.max_positions, bases.whole);
  RopeSpec local = whole;
  local.theta = bases.local;
  local.scaling = {};
  if (kinds) local = of_kind(kSlidingAttention);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.rope = layer.attention.window > 0 ? local : whole;
  });
}

void ReadRotaryOptions(const JsonFields& config, ModelSpec& spec) {
  const std::string type = config.Text("rotary_scaling_type", "");
  const double factor = config.Number("rotary_scaling_factor", 0.0);
  if (type.empty() != (factor == 0.0)) {
    return config.Fail(type.empty() ? "rotary_scaling_factor" : "rotary_scaling_type",
                       "rotary_scaling_type and rotary_scaling_factor go together");
  }
  RopeScaling scaling = {.factor = factor, .original_max_positions = spec.max_positions};
  if (type == "linear") scaling.kind = RopeScaling::Kind::kLinear;
  if (type == "dynamic") scaling.kind = RopeScaling::Kind::kDynamic;
  if (!type.empty() && scaling.kind == RopeScaling::Kind::kNone) {
    return Refuse(config, "rotary_scaling_type", "; supported are linear, dynamic");
  }
  for (const char* key : {"rotary_base", "rotary_dim", "rotary_scaling_type"}) {
    if (!config.Has(key)) continue;
    const bool turns = std::ranges::any_of(
        spec.layers, [](const LayerSpec& layer) { return layer.attention.rope.dim > 0; });
    if (!turns) return config.Fail(key, "the model has no rotary positions");
  }
  for (LayerSpec& layer : spec.layers) {
    RopeSpec& rope = layer.attention.rope;
    if (rope.dim == 0) continue;
    rope.theta = config.Number("rotary_base", rope.theta);
    rope.dim = config.Int("rotary_dim", rope.dim);
    if (type.empty()) continue;
    // What was scaled already is scaled from its trained context instead.
    if (rope.scaling.original_max_positions > 0) {
      scaling.original_max_positions = rope.scaling.original_max_positions;
    }
    rope.scaling = scaling;
  }
  if (type.empty() || spec.layers.empty()) return;
  spec.max_positions =
      Stretched(config, "rotary_scaling_factor", factor, scaling.original_max_positions);
}

RopeScaling ReadRopeScaling(const JsonFields& rope, int64_t original_positions,
                            int64_t& max_positions) {
  RopeScaling scaling;
  const char* key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(key, "default");
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (type == "dynamic") {
    scaling.kind = RopeScaling::Kind::kDynamic;
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.low_freq_factor = rope.Number("low_freq_factor");
    scaling.high_freq_factor = rope.Number("high_freq_factor");
    scaling.original_max_positions =
        rope.Int("original_max_position_embeddings", original_positions);
  } else if (type == "yarn") {
    ReadYarn(rope, original_positions, scaling);
    max_positions = std::max(
        max_positions, Stretched(rope, "factor", scaling.factor, scaling.original_max_positions));
    return scaling;
  } else if (type == "longrope" || type == "su") {
    ReadLongRope(rope, original_positions, max_positions, scaling);
    return scaling;
  } else {
    Refuse(rope, key, "; supported are default, linear, dynamic, llama3, yarn, longrope");
    return scaling;
  }
  scaling.factor = rope.Number("factor");
  if (scaling.kind == RopeScaling::Kind::kLlama3) return scaling;
  scaling.original_max_positions = max_positions;
  max_positions = Stretched(rope, "factor", scaling.factor, max_positions);
  return scaling;
}

void ReadSizes(const JsonFields& config, const SizeKeys& keys, ModelSpec& spec) {
  spec.dtype = ReadDType(config);
  const auto read = [&config](std::string_view key, int64_t fallback) {
    return fallback > 0 ? config.Int(key, fallback) : config.Int(key);
  };
  spec.vocab_size = read(keys.vocab, keys.default_vocab);
  spec.hidden_size = config.Int(keys.hidden);
  spec.max_positions = config.Int(keys.positions, keys.default_positions);
  spec.norm.epsilon = config.Number(keys.epsilon, keys.default_epsilon);
  spec.tied_head = config.Bool("tie_word_embeddings", keys.default_tied);
  LayerSpec layer;
  AttentionSpec& attention = layer.attention;
  attention.num_heads = read(keys.heads, keys.default_heads);
  attention.num_kv_heads = config.Int(
      keys.kv_heads, keys.default_kv_heads > 0 ? keys.default_kv_heads : attention.num_heads);
  if (config.Has(keys.head_dim) || keys.default_head_dim > 0) {
    attention.head_dim = read(keys.head_dim, keys.default_head_dim);
  } else if (attention.num_heads > 0) {
    if (spec.hidden_size % attention.num_heads != 0) {
      config.Fail(keys.heads,
                  "does not divide " + std::string(keys.hidden) + ", and head_dim is missing");
    }
    attention.head_dim = spec.hidden_size / attention.num_heads;
  }
  layer.mlp.intermediate_size = keys.default_intermediate
                                    ? config.Int(keys.intermediate, 4 * spec.hidden_size)
                                    : config.Int(keys.intermediate);
  spec.layers = RepeatLayer(config, keys.layers, layer);
}

void ForEachLayer(ModelSpec& spec, const std::function<void(LayerSpec& layer)>& change) {
  for (LayerSpec& layer : spec.layers) change(layer);
}

ops::Activation ReadActivation(const JsonFields& config, std::string_view key,
                               std::string_view fallback) {
  // As transformers names them.
  static constexpr std::pair<std::string_view, ops::Activation> kNames[] = {
      {"silu", ops::Activation::kSilu},          {"swish", ops::Activation::kSilu},
      {"gelu", ops::Activation::kGelu},          {"gelu_python", ops::Activation::kGelu},
      {"gelu_new", ops::Activation::kGeluTanh},  {"gelu_pytorch_tanh", ops::Activation::kGeluTanh},
      {"gelu_fast", ops::Activation::kGeluTanh}, {"relu", ops::Activation::kRelu}};
  const std::string name = config.Text(key, fallback);
  std::string known;
  for (const auto& [other, activation] : kNames) {
    if (other == name) return activation;
    known += (known.empty() ? "" : ", ") + std::string(other);
  }
  Refuse(config, key, "; supported are " + known);
  return ops::Activation::kSilu;
}

int32_t ReadCount(const JsonFields& config, std::string_view key, int64_t fallback) {
  const int64_t count = config.Int(key, fallback);
  return count >= 0 && count <= ops::kMaxExperts ? static_cast<int32_t>(count) : 0;
}

bool IsSparseLayer(const JsonFields& config, int64_t layer) {
  const std::vector<int64_t> dense = config.Ints("mlp_only_layers");
  const int64_t step = config.Int("decoder_sparse_step", 1);
  if (step < 1) config.Fail("decoder_sparse_step", "must be at least 1");
  return step >= 1 && (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
}

namespace {

// scoring_func and topk_method together.
ops::RoutingRule ReadRouting(const JsonFields& config, std::string_view scoring) {
  using Rule = ops::RoutingRule;
  const std::string function = config.Text("scoring_func", scoring);
  const bool sigmoid = function == "sigmoid";
  if (!sigmoid && function != "softmax") {
    Refuse(config, "scoring_func", "; it must be softmax or sigmoid");
  }
  const std::string method =
      config.Text("topk_method", sigmoid ? "noaux_tc" : "group_limited_greedy");
  if (method != (sigmoid ? "noaux_tc" : "group_limited_greedy") &&
      (sigmoid || method != "greedy")) {
    Refuse(config, "topk_method", " with scoring_func " + function);
  }
  Rule rule = {.function = sigmoid ? Rule::Function::kSigmoid : Rule::Function::kSoftmax,
               .experts_per_token = ReadCount(config, "num_experts_per_tok", 0),
               .renormalise = config.Bool("norm_topk_prob", sigmoid),
               .scale = static_cast<float>(config.Number("routed_scaling_factor", 1.0))};
  if (method != "greedy") {
    rule.num_groups = ReadCount(config, "n_group", 1);
    rule.chosen_groups = ReadCount(config, "topk_group", 1);
  }
  if (sigmoid) {
    rule.group_value = Rule::GroupValue::kTwoLargest;
    rule.others_count_zero = true;  // as masked_fill of the authors' code
  } else if (rule.renormalise && rule.experts_per_token > 1) {
    rule.scale = 1.0f;  // softmax scores are renormalised or scaled
  } else {
    rule.renormalise = false;
  }
  return rule;
}

}  // namespace

void ReadRoutedExperts(const JsonFields& config, std::string_view scoring, ModelSpec& spec) {
  const int64_t neurons = config.Int("moe_intermediate_size");
  const int64_t shared = config.Int("n_shared_experts", 0);
  const int64_t step = config.Int("moe_layer_freq", 1);
  if (step < 1) return config.Fail("moe_layer_freq", "must be at least 1");
  if (shared < 0 || shared > ops::kMaxExperts) {
    return config.Fail("n_shared_experts", config.Shown("n_shared_experts") + " experts");
  }
  const ops::RoutingRule routing = ReadRouting(config, scoring);
  for (int64_t i = config.Int("first_k_dense_replace", 0); i < spec.num_layers(); ++i) {
    if (i < 0 || i % step != 0) continue;
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.moe = {.num_experts = config.Int("n_routed_experts"),
                 .expert = {.intermediate_size = neurons, .activation = layer.mlp.activation},
                 .routing = routing,
                 .correction = routing.function == ops::RoutingRule::Function::kSigmoid};
    layer.mlp.intermediate_size = neurons * shared;
  }
}

void ReadWindows(const JsonFields& config, ModelSpec& spec) {
  const int64_t window = config.Int("sliding_window", 0);
  const std::vector<std::string> types = config.Texts("layer_types");
  const bool slides = config.Has("sliding_window") && config.Bool("use_sliding_window", true);
  const int64_t first = config.Int("max_window_layers", 0);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    bool has_window = slides && static_cast<int64_t>(i) >= first;
    if (i < types.size()) {
      has_window = types[i] == kSlidingAttention;
      if (!has_window && types[i] != kFullAttention) {
        config.Fail("layer_types", "\"" + types[i] + "\" is not supported");
      }
    }
    if (!has_window) continue;
    if (window < 1) config.Fail("sliding_window", config.Shown("sliding_window") + " keys");
    spec.layers[i].attention.window = window;
  }
}

void ReadInterleavedWindows(const JsonFields& config, int64_t every, int64_t default_window,
                            ModelSpec& spec) {
  if (config.Has("layer_types")) return ReadWindows(config, spec);
  every = config.Int("sliding_window_pattern", every);
  if (every < 1) return Refuse(config, "sliding_window_pattern", "");
  const int64_t window = config.Int("sliding_window", default_window);
  if (window < 1) return config.Fail("sliding_window", config.Shown("sliding_window") + " keys");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool full = (static_cast<int64_t>(i) + 1) % every == 0;
    spec.layers[i].attention.window = full ? 0 : window;
  }
}

std::vector<LayerSpec> RepeatLayer(const JsonFields& config, std::string_view key,
                                   const LayerSpec& layer) {
  const int64_t count = config.Int(key);
  if (count >= 1 && count <= kMaxLayers) {
    return std::vector<LayerSpec>(static_cast<size_t>(count), layer);
  }
  config.Fail(
      key, config.Shown(key) + " layers; it must be between 1 and " + std::to_string(kMaxLayers));
  return {};
}

std::vector<int32_t> ReadIds(const JsonFields& config, std::string_view key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const int64_t id : config.Ints(key)) {
    if (id >= 0 && id < vocab_size) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace tandem
