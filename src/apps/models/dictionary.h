// The answer key of the embedded pair: questions as token ids and their expected answers, for `eval
// dictionary` and the benchmarks. Immutable after Open; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/models/session.h"
#include "runtime/request/request.h"
#include "serve/text_codec.h"

namespace tandem::apps {

struct DictionaryEntry {
  std::string word;
  std::string answer;
};

// The key, which lies next to the embedded pair.
Result<std::vector<DictionaryEntry>> ReadDictionaryKey();

// A way to ask: a wording of the plain prompt, or a chat with or without a system prompt.
struct QuestionForm {
  std::string name;     // "What does \"{}\" mean?", "chat"
  std::string wording;  // {} stands for the word
  bool chat = false;
  std::string system_prompt;  // chat only; empty: none
};

class Dictionary {
 public:
  // The key is next to the embedded pair; `codec` is that of the session's target.
  static Result<Dictionary> Open(std::shared_ptr<const serve::TextCodec> codec);

  const std::vector<DictionaryEntry>& entries() const { return entries_; }
  // Words that no dictionary has; the expected answer is UnknownAnswer().
  const std::vector<std::string>& made_up_words() const { return made_up_words_; }
  static std::string UnknownAnswer() { return "I don't know that word."; }

  // The first is the one the whole key is measured with.
  static const std::vector<QuestionForm>& Forms();

  // A greedy request for the word.
  Result<Request> Ask(const std::string& word, const QuestionForm& form) const;
  // `count` first-form questions, spread evenly over the key.
  Result<std::vector<Request>> Questions(size_t count) const;
  // `count` entries spread evenly over the key (all of them when there are fewer).
  std::vector<DictionaryEntry> Sample(size_t count) const;

  std::string Decode(const std::vector<int32_t>& tokens) const;

 private:
  Dictionary() = default;
  Result<std::vector<int32_t>> Prompt(const std::string& question, const QuestionForm& form) const;

  std::vector<DictionaryEntry> entries_;
  std::vector<std::string> made_up_words_;
  std::shared_ptr<const serve::TextCodec> codec_;
  std::vector<int32_t> end_ids_;
};

}  // namespace tandem::apps
