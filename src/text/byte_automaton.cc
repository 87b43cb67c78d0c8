#include "text/byte_automaton.h"

namespace tandem {

Result<ByteAutomaton> ByteAutomaton::Build(std::span<const std::string> words) {
  size_t total_bytes = 0;
  ByteAutomaton result;
  for (const std::string& word : words) {
    total_bytes += word.size();
    for (unsigned char byte : word) {
      if (result.class_of_[byte] == 0) {
        result.class_of_[byte] = static_cast<uint16_t>(result.num_classes_++);
      }
    }
  }
  if (total_bytes > kMaxTotalBytes) {
    return InvalidArgument("the words have " + std::to_string(total_bytes) +
                           " bytes together; at most " + std::to_string(kMaxTotalBytes) +
                           " are possible");
  }

  const size_t width = result.num_classes_;
  constexpr int kNone = -1;
  const auto add_state = [&](uint32_t depth) {
    result.states_.push_back({kStart, -1, depth});
    result.next_.resize(result.next_.size() + width, kNone);
    return static_cast<int>(result.states_.size()) - 1;
  };
  add_state(0);
  for (size_t w = 0; w < words.size(); ++w) {
    int state = kStart;
    for (unsigned char byte : words[w]) {
      const size_t edge = state * width + result.class_of_[byte];
      if (result.next_[edge] == kNone) {
        const int added = add_state(result.states_[state].depth + 1);
        result.next_[edge] = added;
      }
      state = result.next_[edge];
    }
    if (state != kStart && result.states_[state].match < 0) {
      result.states_[state].match = static_cast<int>(w);
    }
  }

  // Breadth first: a state's fallback is shallower, so its row is complete when it is copied from.
  std::vector<int> queue;
  queue.reserve(result.states_.size());
  for (size_t c = 0; c < width; ++c) {
    int& to = result.next_[c];
    if (to == kNone) {
      to = kStart;
    } else {
      queue.push_back(to);
    }
  }
  for (size_t head = 0; head < queue.size(); ++head) {
    const int state = queue[head];
    const int fallback = result.states_[state].fallback;
    if (result.states_[state].match < 0) {
      result.states_[state].match = result.states_[fallback].match;
    }
    for (size_t c = 0; c < width; ++c) {
      int& to = result.next_[state * width + c];
      const int shorter = result.next_[fallback * width + c];
      if (to == kNone) {
        to = shorter;
      } else {
        result.states_[to].fallback = shorter;
        queue.push_back(to);
      }
    }
  }
  return result;
}

}  // namespace tandem
