// ChoiceDecoder: turns the tokens of one choice into pieces of text that may be shown. A piece
// waits while its text could be the beginning of a stop string; text in or after a matched one is
// never given out. Owned by the service's pump thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/request/request.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"
#include "text/stop_matcher.h"

namespace tandem::serve {

// A drawn or scored token as a piece of `text`.
TokenPiece PieceOf(const SampledToken& token, std::string text);

class ChoiceDecoder {
 public:
  // Without a decoder pieces have no text; `stops` may be null.
  ChoiceDecoder(std::unique_ptr<TextCodec::Decoder> decoder,
                std::shared_ptr<const StopStrings> stops);

  // `logits`: the token's, or empty. Appends the text that may now be shown to `out`. True when a
  // stop string is complete: nothing follows.
  bool Push(const SampledToken& token, LogitsRow logits, std::vector<TokenPiece>& out);
  // The end without a stop string: appends all the text held back.
  void Flush(std::vector<TokenPiece>& out);

  // Tokens pushed so far, the number that usage reports.
  int32_t num_tokens() const { return num_tokens_; }

 private:
  void Release(std::vector<TokenPiece>& out);

  std::unique_ptr<TextCodec::Decoder> decoder_;
  std::optional<StopMatcher> matcher_;  // none without stop strings
  std::deque<TokenPiece> held_;
  size_t released_bytes_ = 0;  // of the choice's text, by the matcher
  size_t shown_bytes_ = 0;     // of those, the number given out in pieces
  int32_t num_tokens_ = 0;
};

}  // namespace tandem::serve
