// Token ids back to text, one at a time: Push returns what has become complete, never half a
// character, and all the pieces together equal decoding the whole at once.
// A Detokenizer belongs to one sequence and is used by one thread at a time; it shares its
// Tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace tandem {

// Bytes in, UTF-8 out. What can never become a character turns into U+FFFD, one for each maximal
// invalid part (as Rust and Python do); what may still become one waits, at most 3 bytes.
class Utf8Stream {
 public:
  std::string Push(std::string_view bytes);
  // An unfinished character becomes one U+FFFD.
  std::string Flush();

 private:
  std::string pending_;
};

class Detokenizer {
 public:
  struct Options {
    bool skip_special = true;
    // False when the text continues a prompt: then a leading space is part of it, and stays.
    bool at_start = true;
  };

  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, Options options);
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer)
      : Detokenizer(std::move(tokenizer), Options()) {}

  std::string Push(int32_t id);
  // What is still held back, at the end of the sequence. Nothing may be pushed afterwards.
  std::string Flush() { return utf8_.Flush(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  Options options_;
  bool strip_space_;  // the next byte of the text goes if it is a space
  bool drop_marks_;   // the next token loses its spaces
  Utf8Stream utf8_;
};

// All of `ids` at once.
std::string Decode(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const int32_t> ids,
                   Detokenizer::Options options = {});

}  // namespace tandem
