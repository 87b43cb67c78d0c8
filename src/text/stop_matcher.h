// Ends a text before the first stop string in it, while it streams: text that may begin a stop
// string is held back until that is decided. The result does not depend on how the text is cut into
// pieces. StopStrings are immutable and shared; a StopMatcher belongs to one sequence and one
// thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/byte_automaton.h"

namespace tandem {

class StopStrings {
 public:
  // Empty strings are ignored.
  static Result<std::shared_ptr<const StopStrings>> Compile(std::vector<std::string> strings);
  const ByteAutomaton& automaton() const { return automaton_; }
  const std::string& operator[](int index) const { return strings_[index]; }

 private:
  StopStrings(std::vector<std::string> strings, ByteAutomaton automaton)
      : strings_(std::move(strings)), automaton_(std::move(automaton)) {}
  std::vector<std::string> strings_;
  ByteAutomaton automaton_;
};

class StopMatcher {
 public:
  struct Output {
    std::string emit;  // text that certainly belongs to the answer
    bool matched = false;
    int stop_index = -1;  // which stop string, when matched
  };

  // `include_stop`: the stop string itself is emitted too.
  explicit StopMatcher(std::shared_ptr<const StopStrings> stops, bool include_stop = false)
      : stops_(std::move(stops)), include_stop_(include_stop) {}

  // The first stop string to be complete ends the text; of several that end together, the longest.
  // After a match all further text is discarded.
  Output Push(std::string_view text);
  // The text held back, at the end of a text without a stop string.
  std::string Flush();

 private:
  std::shared_ptr<const StopStrings> stops_;
  bool include_stop_;
  int state_ = ByteAutomaton::kStart;
  int stop_index_ = -1;
  std::string held_;  // Depth(state_) bytes
};

}  // namespace tandem
