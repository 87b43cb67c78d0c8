// Words that must never appear in the decoded text, in any tokenization: an automaton over tokens
// that tells, after any tokens so far, which next tokens would complete a word. Immutable after
// Compile; shared by threads. A state is a small number that the caller keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/byte_automaton.h"
#include "text/tokenizer.h"

namespace tandem {

class BadWords {
 public:
  // Empty words are ignored (as TensorRT-LLM does). Special tokens add no text: they are never
  // banned and change no state (a bad word that names one is banned by its id elsewhere).
  static Result<std::shared_ptr<const BadWords>> Compile(std::shared_ptr<const Tokenizer> tokenizer,
                                                         std::span<const std::string> words);

  int Start() const { return ByteAutomaton::kStart; }
  // The state after `token`; also defined for a banned one.
  int Next(int state, int32_t token) const;
  // Whether `token` would complete a word. Takes one step per byte of the token.
  bool Banned(int state, int32_t token) const;
  // Clears the bits of banned tokens and leaves all others: bit i % 32 of word i / 32 is token i,
  // set means allowed. Tokens beyond `allowed_bits` are not the model's and are skipped. Takes one
  // step per banned token.
  void Mask(int state, std::span<uint32_t> allowed_bits) const;
  int NumStates() const { return automaton_.NumStates(); }

 private:
  // Tokens [begin, end) of Tokenizer::IdsByBytes().
  struct Range {
    uint32_t begin, end;
  };
  BadWords(std::shared_ptr<const Tokenizer> tokenizer, ByteAutomaton automaton)
      : tokenizer_(std::move(tokenizer)), automaton_(std::move(automaton)) {}
  void AddCompletions(std::span<const std::string> words);
  Range TokensWithPrefix(std::string_view prefix) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  ByteAutomaton automaton_;
  std::vector<int32_t> always_banned_;  // tokens that hold a whole word
  // By state: tokens that begin with the missing rest of a word begun there. A state's suffixes
  // (fallbacks) have their own.
  std::vector<std::vector<Range>> completions_;
};

}  // namespace tandem
