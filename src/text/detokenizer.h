// Token ids back to text, one at a time: Push returns newly completed text, never half a character,
// and all the pieces together equal decoding the whole at once. A Detokenizer belongs to one
// sequence and is used by one thread at a time; it shares its Tokenizer. A copy continues from the
// same state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace tandem {

// Bytes in, UTF-8 out. Invalid bytes become U+FFFD, one for each maximal invalid part (as in Rust
// and Python); an incomplete character waits, at most 3 bytes.
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
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  std::string Push(int32_t id);
  // Skips tokens whose text is shown elsewhere, such as the prompt's: the text after them keeps its
  // leading space, and it completes a character that they left unfinished.
  void GoPast(std::span<const int32_t> ids);
  // The text still held back, at the end of the sequence. Nothing may be pushed afterwards.
  std::string Flush() { return utf8_.Flush(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  bool at_start_ = true;  // no token has added text
  Utf8Stream utf8_;
};

// All of `ids` at once.
std::string Decode(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const int32_t> ids,
                   bool skip_special = true);

}  // namespace tandem
