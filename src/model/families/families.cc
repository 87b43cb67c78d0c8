#include "model/families/families.h"

#include <algorithm>
#include <array>

#include "model/families/baichuan.h"
#include "model/families/cohere.h"
#include "model/families/falcon.h"
#include "model/families/gemma.h"
#include "model/families/glm.h"
#include "model/families/gpt2.h"
#include "model/families/gptj.h"
#include "model/families/internlm.h"
#include "model/families/llama.h"
#include "model/families/mistral.h"
#include "model/families/mixtral.h"
#include "model/families/olmo2.h"
#include "model/families/phi3.h"
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
    StarCoder2Family(), CohereFamily(),   Olmo2Family(),   MixtralFamily(),    Qwen2MoeFamily(),
    Qwen3MoeFamily(),   Glm4MoeFamily(),
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

Result<const Family*> FindFamily(std::string_view architecture) {
  std::string supported;
  for (const Family& family : kFamilies) {
    for (const std::string_view name : family.architectures) {
      if (name == architecture) return &family;
      supported += (supported.empty() ? "" : ", ") + std::string(name);
    }
  }
  return Unimplemented("architecture \"" + std::string(architecture.substr(0, 100)) +
                       "\" is not supported; supported are: " + supported);
}

const Family* FamilyOf(const ModelSpec& spec) {
  const auto* const found = std::ranges::find(kFamilies, spec.family, &Family::name);
  return found == kFamilies.end() ? nullptr : &*found;
}

Result<ModelSpec> SpecFromHfConfig(const std::string& config_json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Parse(config_json));
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
  family->read(config, spec);
  ReadQuantization(config, spec);
  spec.bos_ids = ReadIds(config, "bos_token_id", spec.vocab_size);
  spec.eos_ids = ReadIds(config, "eos_token_id", spec.vocab_size);
  TANDEM_RETURN_IF_ERROR(config.status());
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

}  // namespace tandem
