#include "serve/free_word.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::serve {
namespace {

constexpr std::string_view kLetters = "continued";
// There are more numbers of this many digits than any text has places.
constexpr size_t kDigits = 10;

// The number that the text begins with, of kDigits; a number that no word has if it has fewer.
uint64_t NumberAt(std::string_view text) {
  uint64_t number = 0;
  for (size_t i = 0; i < kDigits; ++i) {
    if (i >= text.size() || text[i] < '0' || text[i] > '9') return UINT64_MAX;
    number = 10 * number + static_cast<uint64_t>(text[i] - '0');
  }
  return number;
}

}  // namespace

void FreeWord::Avoid(std::string_view text) {
  for (size_t at = text.find(kLetters); at != text.npos; at = text.find(kLetters, at)) {
    at += kLetters.size();
    numbers_.push_back(NumberAt(text.substr(at)));
  }
}

std::string FreeWord::Word() const {
  if (numbers_.empty()) return std::string(kLetters);
  // The least that is not taken is at most the number of places.
  std::vector<bool> taken(numbers_.size() + 1);
  for (const uint64_t number : numbers_) {
    if (number < taken.size()) taken[number] = true;
  }
  const auto free = std::ranges::find(taken, false) - taken.begin();
  return fmt::format("{}{:0{}}", kLetters, free, kDigits);
}

}  // namespace tandem::serve
