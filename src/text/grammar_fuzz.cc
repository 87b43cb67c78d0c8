// Fuzz target: any text as a grammar, whose kind is the first byte; then some tokens of an output
// that follows it, drafts that are taken back, and the masks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/grammar.h"
#include "text/testing/tokenizers.h"

namespace {

using namespace tandem;

constexpr int kSteps = 24;

struct Grammars {
  std::shared_ptr<Tokenizer> tokenizer = LoadTestTokenizer("byte_level");
  std::shared_ptr<GrammarSet> set =
      GrammarSet::Create(*tokenizer, tokenizer->VocabSize(), {.max_text_bytes = 4096}).value();
};

bool Has(const std::vector<uint32_t>& mask, int32_t id) {
  return mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1;
}

// The first allowed token at or after a place that the seed chooses; -1 if there is none.
int32_t Choose(const std::vector<uint32_t>& mask, uint32_t& seed) {
  seed = seed * 1664525 + 1013904223;
  const auto size = static_cast<int32_t>(mask.size() * 32);
  const auto first = static_cast<int32_t>(seed % static_cast<uint32_t>(size));
  for (int32_t i = 0; i < size; ++i) {
    if (Has(mask, (first + i) % size)) return (first + i) % size;
  }
  return -1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Grammars grammars;
  if (size == 0) return 0;
  const auto kind = static_cast<GrammarKind>((data[0] - '0' + 252) % 7);
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto start = grammars.set->Compile(kind, text);
  if (!start.ok()) {
    TANDEM_CHECK(!start.status().message().empty(), "an error without a message");
    return 0;
  }
  auto state = (*start)->Clone();
  TANDEM_CHECK(state.ok(), "no copy");
  const auto ends = grammars.tokenizer->EosIds();
  auto seed = static_cast<uint32_t>(size);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<uint32_t> mask((static_cast<size_t>(grammars.tokenizer->VocabSize()) + 31) / 32,
                               ~0u);
    if (!state->FillMask(mask, ends).ok()) return 0;
    const int32_t token = Choose(mask, seed);
    TANDEM_CHECK(token >= 0, "an empty mask without an error");
    if (std::ranges::count(ends, token) > 0) return 0;
    const auto taken = state->Advance({&token, 1});
    if (!taken.ok()) return 0;
    TANDEM_CHECK(*taken == 1, "an allowed token was refused");
    if (step % 3 == 0 && (!state->RollBack(1).ok() || !state->Advance({&token, 1}).ok())) return 0;
  }
  return 0;
}
