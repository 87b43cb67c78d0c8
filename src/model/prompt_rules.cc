#include "model/prompt_rules.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "model/rope.h"

namespace tandem {
namespace {

// Of a request: the field at fault (runtime/request/request.h).
constexpr std::string_view kPromptField = "prompt";

// Where the rows after the prefix stand: at the first of the mask tokens that the prompt holds.
Result<int32_t> MaskPosition(const PrefixSpec& prefix, std::span<const int32_t> prompt) {
  std::string ids;
  for (const int32_t id : prefix.mask_ids) {
    const auto found = std::ranges::find(prompt, id);
    if (found != prompt.end()) return static_cast<int32_t>(found - prompt.begin());
    ids += (ids.empty() ? "" : ", ") + std::to_string(id);
  }
  return FieldError(kPromptField, "holds none of the tokens " + ids +
                                      ", of which one stands where the model's output belongs");
}

}  // namespace

PromptRules PromptRulesOf(const ModelSpec& spec, int64_t table_rows) {
  PromptRules rules{.prefix = spec.prefix, .table_rows = table_rows};
  for (const auto* layers : {&spec.layers, &spec.other_layers}) {
    for (const LayerSpec& layer : *layers) {
      const RopeScaling& scaling = layer.attention.rope.scaling;
      if (scaling.kind == RopeScaling::Kind::kNtkSteps) {
        rules.trained = scaling.original_max_positions;
      }
    }
  }
  return rules;
}

RowForm RowFormOf(const ModelSpec& spec) {
  const bool has_prefix = spec.prefix.start_id >= 0;
  return {.turns = has_prefix || PromptRulesOf(spec, 0).trained > 0,
          .second_positions = spec.HasSecondPositions(),
          .prefixes = has_prefix};
}

Result<ops::PromptLayout> LayOutPrompt(const PromptRules& rules, std::span<const int32_t> prompt) {
  ops::PromptLayout layout;
  if (rules.trained > 0) {
    const int64_t step = NtkStep(rules.trained, static_cast<int64_t>(prompt.size()));
    layout.first_turn = static_cast<int32_t>(step * rules.table_rows);
  }
  if (rules.prefix.start_id < 0) return layout;
  const auto start = std::ranges::find(prompt, rules.prefix.start_id);
  if (start == prompt.end()) {
    return FieldError(kPromptField, "does not hold the token " +
                                        std::to_string(rules.prefix.start_id) +
                                        ", with which the model's output begins");
  }
  layout.prefix_len = static_cast<int32_t>(start - prompt.begin());
  if (layout.prefix_len == 0) {
    return FieldError(kPromptField,
                      "has nothing before the token " + std::to_string(rules.prefix.start_id));
  }
  TANDEM_ASSIGN_OR_RETURN(layout.mask_position,
                          MaskPosition(rules.prefix, prompt.first(start - prompt.begin())));
  return layout;
}

std::vector<int32_t> CutPrompt(const PromptRules& rules, std::span<const int32_t> prompt,
                               int64_t longest) {
  const auto kept = std::min(static_cast<size_t>(longest), prompt.size());
  std::vector<int32_t> cut(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(kept));
  const auto layout = LayOutPrompt(rules, prompt);
  if (!layout.ok() || layout->prefix_len < longest || kept < 2) return cut;
  const auto mask = static_cast<size_t>(layout->mask_position);
  cut[kept - 1] = rules.prefix.start_id;
  if (mask >= kept - 1) cut[kept - 2] = prompt[mask];
  return cut;
}

void AddToCacheKey(const ops::PromptLayout& layout, std::span<const int32_t> prompt,
                   std::string& key) {
  if (layout == ops::PromptLayout{}) return;
  key += '\0' + std::to_string(layout.first_turn) + ',' + std::to_string(layout.mask_position);
  // Every token of the prefix depends on all of it.
  const auto prefix = std::as_bytes(prompt.first(static_cast<size_t>(layout.prefix_len)));
  key.append(reinterpret_cast<const char*>(prefix.data()), prefix.size());
}

}  // namespace tandem
