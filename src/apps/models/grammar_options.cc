#include "apps/models/grammar_options.h"

#include <string_view>

namespace tandem::apps {

const BoundOptions<GrammarLimits>& GrammarRows() {
  constexpr std::string_view kGroup = "Grammars";
  static const BoundOptions<GrammarLimits> rows({
      BindOption<GrammarLimits, &GrammarLimits::max_items_in_row>(
          {.name = "grammar_max_items_in_row",
           .meaning = "Branches that a grammar may have open at a place",
           .group = kGroup,
           .min = 1,
           .max = 1LL << 32}),
      BindOption<GrammarLimits, &GrammarLimits::initial_lexer_fuel>(
          {.name = "grammar_initial_lexer_fuel",
           .meaning = "Regex nodes that compiling a grammar may make",
           .group = kGroup,
           .min = 1,
           .max = 1LL << 40}),
      BindOption<GrammarLimits, &GrammarLimits::step_lexer_fuel>(
          {.name = "grammar_step_lexer_fuel",
           .meaning = "Regex nodes that a mask of allowed tokens may make",
           .group = kGroup,
           .min = 1,
           .max = 1LL << 40}),
      BindOption<GrammarLimits, &GrammarLimits::step_max_items>(
          {.name = "grammar_step_max_items",
           .meaning = "Parser items that a mask may make",
           .group = kGroup,
           .min = 1,
           .max = 1LL << 32}),
      BindOption<GrammarLimits, &GrammarLimits::max_lexer_states>(
          {.name = "grammar_max_lexer_states",
           .meaning = "Lexer states of a grammar in all, of 1 to 2 KB each",
           .group = kGroup,
           .min = 1,
           .max = 1LL << 32}),
      BindOption<GrammarLimits, &GrammarLimits::max_grammar_size>(
          {.name = "grammar_max_grammar_size",
           .meaning = "Symbols in the rules of a grammar",
           .group = kGroup,
           .min = 1,
           .max = 1LL << 32}),
      BindOption<GrammarLimits, &GrammarLimits::log_level>(
          {.name = "grammar_log_level",
           .meaning = "What llguidance writes to the standard error. 0: nothing, 1: its warnings, "
                      "2: every step",
           .group = kGroup,
           .min = 0,
           .max = 2}),
  });
  return rows;
}

}  // namespace tandem::apps
