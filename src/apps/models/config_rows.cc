#include "apps/models/config_rows.h"

namespace tandem::apps {
namespace {

template <auto kField>
BoundOption<ConfigOptions> Sets(OptionSpec spec) {
  spec.group = "What config.json leaves open";
  return BindOption<ConfigOptions, kField>(spec);
}

}  // namespace

const BoundOptions<ConfigOptions>& ConfigOptionRows() {
  static const BoundOptions<ConfigOptions> rows({
      Sets<&ConfigOptions::rotary_base>(
          {.name = "rotary_base",
           .meaning = "Base of the target's rotary positions; 0: as config.json says",
           .min = 0,
           .max = 1e12}),
      Sets<&ConfigOptions::rotary_dim>(
          {.name = "rotary_dim",
           .meaning = "Elements of the target's heads that rotary positions turn; 0: as "
                      "config.json says",
           .min = 0,
           .max = 1024}),
      Sets<&ConfigOptions::rotary_scaling_type>(
          {.name = "rotary_scaling_type",
           .meaning = "Scaling of the target's rotary positions, with --rotary_scaling_factor",
           .choices = "linear|dynamic"}),
      Sets<&ConfigOptions::rotary_scaling_factor>(
          {.name = "rotary_scaling_factor",
           .meaning = "How much longer that scaling makes contexts; 0: as config.json says",
           .min = 0,
           .max = 1e6}),
      Sets<&ConfigOptions::baichuan_model_version>(
          {.name = "baichuan_model_version",
           .meaning = "Generation and size of a Baichuan model whose vocabulary does not tell",
           .choices = "v1_7b|v1_13b|v2_7b|v2_13b"}),
      Sets<&ConfigOptions::chatglm_model_version>(
          {.name = "chatglm_model_version",
           .meaning = "Generation of a ChatGLM model whose config.json does not tell",
           .choices = "chatglm_6b|chatglm2_6b|chatglm2_6b_32k|chatglm3_6b|chatglm3_6b_base|"
                      "chatglm3_6b_32k|glm_10b|glm|chatglm|chatglm2|chatglm3|glm4"}),
      Sets<&ConfigOptions::gpt_model_version>(
          {.name = "gpt_model_version",
           .meaning = "Layout of a GPT-2 model whose config.json does not tell",
           .choices = "gpt2|santacoder|starcoder"}),
  });
  return rows;
}

}  // namespace tandem::apps
