#include "text/bad_words.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tandem {

Result<std::shared_ptr<const BadWords>> BadWords::Compile(
    std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::string> words) {
  Result<ByteAutomaton> automaton = ByteAutomaton::Build(words);
  if (!automaton.ok()) return automaton.status().Annotate("bad words");
  std::shared_ptr<BadWords> result(new BadWords(std::move(tokenizer), *std::move(automaton)));
  for (int32_t id : result->tokenizer_->IdsByBytes()) {
    if (result->Banned(result->Start(), id)) result->always_banned_.push_back(id);
  }
  result->AddCompletions(words);
  return std::shared_ptr<const BadWords>(std::move(result));
}

// A token completes a word that began before it exactly if the token starts with the rest of the
// word; tokens with a common beginning are contiguous in byte order.
void BadWords::AddCompletions(std::span<const std::string> words) {
  completions_.resize(automaton_.NumStates());
  for (const std::string& word : words) {
    int state = Start();
    for (size_t read = 1; read < word.size(); ++read) {
      state = automaton_.Next(state, static_cast<unsigned char>(word[read - 1]));
      const Range range = TokensWithPrefix(std::string_view(word).substr(read));
      if (range.begin < range.end) completions_[state].push_back(range);
    }
  }
}

BadWords::Range BadWords::TokensWithPrefix(std::string_view prefix) const {
  const std::span<const int32_t> ids = tokenizer_->IdsByBytes();
  const auto start_of = [&](int32_t id) {
    return tokenizer_->TokenBytes(id).substr(0, prefix.size());
  };
  const auto begin = std::ranges::lower_bound(ids, prefix, {}, start_of);
  const auto end = std::ranges::upper_bound(begin, ids.end(), prefix, {}, start_of);
  return {static_cast<uint32_t>(begin - ids.begin()), static_cast<uint32_t>(end - ids.begin())};
}

int BadWords::Next(int state, int32_t token) const {
  if (tokenizer_->IsSpecial(token)) return state;
  for (unsigned char byte : tokenizer_->TokenBytes(token)) state = automaton_.Next(state, byte);
  return state;
}

bool BadWords::Banned(int state, int32_t token) const {
  if (tokenizer_->IsSpecial(token)) return false;
  for (unsigned char byte : tokenizer_->TokenBytes(token)) {
    state = automaton_.Next(state, byte);
    if (automaton_.Match(state) >= 0) return true;
  }
  return false;
}

void BadWords::Mask(int state, std::span<uint32_t> allowed_bits) const {
  const auto ban = [&](int32_t id) {
    const auto word = static_cast<size_t>(id / 32);
    if (word < allowed_bits.size()) allowed_bits[word] &= ~(uint32_t{1} << (id % 32));
  };
  for (int32_t id : always_banned_) ban(id);
  const std::span<const int32_t> ids = tokenizer_->IdsByBytes();
  for (; state != Start(); state = automaton_.Fallback(state)) {
    for (const Range& range : completions_[state]) {
      for (int32_t id : ids.subspan(range.begin, range.end - range.begin)) ban(id);
    }
  }
}

}  // namespace tandem
