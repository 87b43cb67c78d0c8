// DraftMode: who decides how many drafts a sequence gets.
#pragma once

#include <cstdint>

namespace tandem {

enum class DraftMode : uint8_t {
  kAdaptive,  // chosen per sequence by expected goodput, 0 when drafting would not pay
  kFixed,     // always EngineOptions::fixed_draft_len (tests, and users who ask for it)
  kOff,
};

}  // namespace tandem
