#include "model/families/families.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "model/families/baichuan.h"
#include "model/families/bloom.h"
#include "model/families/cohere.h"
#include "model/families/config_words.h"
#include "model/families/deepseek.h"
#include "model/families/falcon.h"
#include "model/families/gemma.h"
#include "model/families/glm.h"
#include "model/families/gpt2.h"
#include "model/families/gpt_neox.h"
#include "model/families/gpt_oss.h"
#include "model/families/gptj.h"
#include "model/families/internlm.h"
#include "model/families/llama.h"
#include "model/families/llama4.h"
#include "model/families/mistral.h"
#include "model/families/mixtral.h"
#include "model/families/mpt.h"
#include "model/families/olmo2.h"
#include "model/families/opt.h"
#include "model/families/phi3.h"
#include "model/families/prefix_glm.h"
#include "model/families/qwen.h"
#include "model/families/starcoder2.h"
#include "model/hf_config.h"
#include "model/hf_quantization.h"
#include "model/json_fields.h"

namespace tandem {
namespace {

const std::array kFamilies = {
    LlamaFamily(),      MistralFamily(),  QwenFamily(),    Qwen2Family(),      Qwen3Family(),
    GemmaFamily(),      Gemma2Family(),   Gemma3Family(),  Phi3Family(),       InternLmFamily(),
    InternLm2Family(),  BaichuanFamily(), ChatGlmFamily(), GlmFamily(),        Glm4Family(),
    FalconFamily(),     GptJFamily(),     Gpt2Family(),    SantaCoderFamily(), GptBigCodeFamily(),
    StarCoder2Family(), CohereFamily(),   Olmo2Family(),   BloomFamily(),      MptFamily(),
    OptFamily(),        GptNeoXFamily(),  MixtralFamily(), Qwen2MoeFamily(),   Qwen3MoeFamily(),
    Glm4MoeFamily(),    GptOssFamily(),   Llama4Family(),  DeepSeekV2Family(), DeepSeekV3Family(),
    ChatGlm6bFamily(),  Glm10bFamily(),   Olmo3Family(),
};

constexpr std::array<std::string_view, 3> kVersionOptions = {
    "baichuan_model_version", "chatglm_model_version", "gpt_model_version"};

// A config, which was parsed before, with the options and the added tokens as its keys. A damaged
// list of tokens counts as none: the tokenizer refuses it.
std::string WithKeys(const std::string& config_json, const ConfigOptions& options,
                     const std::string& added_tokens) {
  nlohmann::json config = nlohmann::json::parse(config_json);
  const auto set = [&](std::string_view key, const auto& value) {
    if (value != std::remove_cvref_t<decltype(value)>{}) config[std::string(key)] = value;
  };
  set("rotary_base", options.rotary_base);
  set("rotary_dim", options.rotary_dim);
  set("rotary_scaling_type", options.rotary_scaling_type);
  set("rotary_scaling_factor", options.rotary_scaling_factor);
  set(kVersionOptions[0], options.baichuan_model_version);
  set(kVersionOptions[1], options.chatglm_model_version);
  set(kVersionOptions[2], options.gpt_model_version);
  const nlohmann::json tokens = nlohmann::json::parse(added_tokens, nullptr, false);
  if (tokens.is_object()) config["added_tokens"] = tokens;
  return config.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void CheckVersions(const JsonFields& config, const Family& family) {
  for (const std::string_view option : kVersionOptions) {
    if (!config.Has(option)) continue;
    std::string known;
    for (const std::string_view version : family.versions) {
      known += (known.empty() ? "" : ", ") + std::string(version);
    }
    const std::string architecture(family.architectures.front());
    if (option != family.version_option) {
      config.Fail(option, "is not for a model of the architecture " + architecture);
    } else if (std::ranges::find(family.versions, config.Text(option)) == family.versions.end()) {
      config.Fail(option, config.Shown(option) +
                              " is not what config.json describes: of the "
                              "architecture " +
                              architecture + " are " + known);
    }
  }
}

}  // namespace

std::span<const Family> Families() { return kFamilies; }

Result<const Family*> FindFamily(std::string_view architecture) {
  std::vector<std::string_view> names;  // once each: some families share one
  for (const Family& family : kFamilies) {
    for (const std::string_view name : family.architectures) {
      if (name == architecture) return &family;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::string supported;
  for (const std::string_view name : names) {
    supported += (supported.empty() ? "" : ", ") + std::string(name);
  }
  return Unimplemented("architecture \"" + std::string(architecture.substr(0, 100)) +
                       "\" is not supported; supported are: " + supported);
}

const Family* FamilyOf(const ModelSpec& spec) {
  const auto* const found = std::ranges::find(kFamilies, spec.family, &Family::name);
  return found == kFamilies.end() ? nullptr : &*found;
}

TensorSource SourceOf(const Family& family, const ModelSpec& spec, const WeightId& id) {
  TensorSource source = family.source(spec, id);
  if (!RowOf(id.part).follows_rows()) source.rows = {};
  return source;
}

Result<ModelSpec> SpecFromHfConfig(const std::string& config_json, const ConfigOptions& options,
                                   const std::string& added_tokens) {
  TANDEM_ASSIGN_OR_RETURN(JsonFields config, JsonFields::Parse(config_json));
  if (options != ConfigOptions{} || !added_tokens.empty()) {
    TANDEM_ASSIGN_OR_RETURN(config,
                            JsonFields::Parse(WithKeys(config_json, options, added_tokens)));
  }
  const std::vector<std::string> architectures = config.Texts("architectures");
  TANDEM_RETURN_IF_ERROR(config.status());
  if (architectures.empty()) {
    return InvalidArgument("architectures: is missing; it names the kind of model");
  }
  TANDEM_ASSIGN_OR_RETURN(const Family* family, FindFamily(architectures.front()));
  for (const Family& other : kFamilies) {
    const bool has_name =
        std::ranges::find(other.architectures, architectures.front()) != other.architectures.end();
    if (has_name && other.claims != nullptr && other.claims(config)) family = &other;
  }
  ModelSpec spec;
  spec.family = family->name;
  spec.architecture = family->architectures.front();
  CheckVersions(config, *family);
  // Beside other modalities the text model is an object of its own.
  const JsonFields text = config.Object("text_config").value_or(config);
  family->read(text, spec);
  if (!text.Has("dtype") && !text.Has("torch_dtype")) spec.dtype = ReadDType(config);
  ReadRotaryOptions(config, spec);
  ReadQuantization(config, spec);
  const auto ids = [&](std::string_view key) {
    return ReadIds(text.Has(key) ? text : config, key, spec.vocab_size);
  };
  spec.bos_ids = ids("bos_token_id");
  spec.eos_ids = ids("eos_token_id");
  TANDEM_RETURN_IF_ERROR(config.status());
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec, WordsOf(text)));
  return spec;
}

}  // namespace tandem
