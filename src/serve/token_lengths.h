// TokenLengths: how long the prompts and answers of one engine were. Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem::serve {

struct LengthHistogram {
  static constexpr std::array<int, 5> kBounds = {10, 50, 100, 500, 1000};
  std::array<uint64_t, kBounds.size() + 1> within{};  // values up to each bound, and all
  uint64_t sum = 0;

  void Add(int32_t length) {
    for (size_t i = 0; i < kBounds.size(); ++i) {
      if (length <= kBounds[i]) ++within[i];
    }
    ++within.back();
    sum += static_cast<uint64_t>(length);
  }
};

struct TokenLengths {
  LengthHistogram input;  // of the prompt, once for each of its answers
  LengthHistogram output;
};

}  // namespace tandem::serve
