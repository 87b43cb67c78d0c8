#include "text/stop_matcher.h"

#include <utility>

namespace tandem {

Result<std::shared_ptr<const StopStrings>> StopStrings::Compile(std::vector<std::string> strings) {
  Result<ByteAutomaton> automaton = ByteAutomaton::Build(strings);
  if (!automaton.ok()) return automaton.status().Annotate("stop strings");
  return std::shared_ptr<const StopStrings>(
      new StopStrings(std::move(strings), *std::move(automaton)));
}

StopMatcher::Output StopMatcher::Push(std::string_view text) {
  if (stop_index_ >= 0) return {{}, true, stop_index_};
  const ByteAutomaton& automaton = stops_->automaton();
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = automaton.Next(state_, static_cast<unsigned char>(text[i]));
    stop_index_ = automaton.Match(state_);
    if (stop_index_ < 0) continue;
    std::string emit = std::exchange(held_, {}).append(text.substr(0, i + 1));
    if (!include_stop_) emit.resize(emit.size() - (*stops_)[stop_index_].size());
    return {std::move(emit), true, stop_index_};
  }
  // The state remembers the end of held_ + text that may begin a stop string.
  std::string emit = std::exchange(held_, {}).append(text);
  const size_t certain = emit.size() - automaton.Depth(state_);
  held_ = emit.substr(certain);
  emit.resize(certain);
  return {std::move(emit), false, -1};
}

std::string StopMatcher::Flush() {
  state_ = ByteAutomaton::kStart;
  return std::exchange(held_, {});
}

}  // namespace tandem
