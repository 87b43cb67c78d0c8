#include "runtime/request/prompt_layouts.h"

namespace tandem {

Result<PromptLayouts> LayOut(const std::array<PromptRules, kNumModels>& rules, Request& request) {
  PromptLayouts layouts;
  for (size_t model = 0; model < layouts.size(); ++model) {
    TANDEM_ASSIGN_OR_RETURN(layouts[model], LayOutPrompt(rules[model], request.prompt));
    AddToCacheKey(layouts[model], request.prompt, request.cache_key);
  }
  constexpr auto kTarget = static_cast<size_t>(ModelIndex::kTarget);
  if (layouts[kTarget].prefix_len > 0 && request.reads_context()) {
    return Unimplemented(
        std::string(request.return_context_logits ? "return_context_logits" : "prompt_logprobs") +
        ": the tokens of this model's prompts see each other, so that a prompt is computed in one "
        "step, which has no room for all of its logits");
  }
  return layouts;
}

}  // namespace tandem
