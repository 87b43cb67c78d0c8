// Finds any of a set of words in a stream of bytes, with one table look-up per byte (Aho and
// Corasick 1975). A state is the longest suffix of the input that begins some word. Immutable,
// shared by threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

class ByteAutomaton {
 public:
  static constexpr int kStart = 0;
  // Limit on the total length of all words, which bounds the table (64 KiB of words with 256
  // different bytes: 64 MiB; of plain text a quarter of that).
  static constexpr size_t kMaxTotalBytes = 64u << 10;

  // Empty words are ignored.
  static Result<ByteAutomaton> Build(std::span<const std::string> words);

  int Next(int state, unsigned char byte) const {
    return next_[static_cast<size_t>(state) * num_classes_ + class_of_[byte]];
  }
  // The longest word that ends in this state, as its index in `words`; -1 if none does.
  int Match(int state) const { return states_[state].match; }
  // Number of last bytes that may still begin a word.
  size_t Depth(int state) const { return states_[state].depth; }
  // The state of the longest proper suffix of this state; kStart for kStart itself.
  int Fallback(int state) const { return states_[state].fallback; }
  int NumStates() const { return static_cast<int>(states_.size()); }

 private:
  struct State {
    int fallback = kStart;
    int match = -1;
    uint32_t depth = 0;
  };
  std::array<uint16_t, 256> class_of_{};  // class 0: bytes in no word
  size_t num_classes_ = 1;
  std::vector<State> states_;
  std::vector<int> next_;  // [num_states, num_classes]
};

}  // namespace tandem
