// What the prompts of a model decide besides their tokens: which tokens see each other, where they
// stand, and by which of several rotary tables they turn. Plain values and pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "ops/round.h"

namespace tandem {

// The initial value: prompts decide nothing.
struct PromptRules {
  PrefixSpec prefix;
  int64_t trained = 0;     // of kNtkSteps, the length up to which the base stays; 0: it always does
  int64_t table_rows = 0;  // positions of each rotary table
};
// `table_rows`: Weights::max_positions.
PromptRules PromptRulesOf(const ModelSpec& spec, int64_t table_rows);

// The arrays of a BatchView that only some models' passes have.
struct RowForm {
  bool turns = false;
  bool second_positions = false;
  bool prefixes = false;  // prefix_len
  bool windows = false;   // window_table; the cache decides, not the spec
  bool operator==(const RowForm&) const = default;
};
RowForm RowFormOf(const ModelSpec& spec);

// INVALID_ARGUMENT of the field "prompt": one without the tokens that such a model's prompts have.
Result<ops::PromptLayout> LayOutPrompt(const PromptRules& rules, std::span<const int32_t> prompt);

// At most the first `longest` tokens. Where that cuts off tokens which LayOutPrompt needs, the last
// of those before them are left out instead; of fewer than two tokens no prompt can be laid out.
std::vector<int32_t> CutPrompt(const PromptRules& rules, std::span<const int32_t> prompt,
                               int64_t longest);

// Appends to `key` everything besides the preceding tokens that determines the prompt's keys and
// values.
void AddToCacheKey(const ops::PromptLayout& layout, std::span<const int32_t> prompt,
                   std::string& key);

}  // namespace tandem
