#include "serve/choice_decoder.h"

#include <utility>

namespace tandem::serve {

TokenPiece PieceOf(const SampledToken& token, std::string text) {
  TokenPiece piece;
  piece.token = token.token;
  piece.text = std::move(text);
  piece.logprob = token.logprob;
  piece.top.reserve(static_cast<size_t>(token.num_top));
  for (int32_t i = 0; i < token.num_top; ++i) {
    piece.top.push_back({token.top_ids[i], token.top_logprobs[i]});
  }
  return piece;
}

ChoiceDecoder::ChoiceDecoder(std::unique_ptr<TextCodec::Decoder> decoder,
                             std::shared_ptr<const StopStrings> stops)
    : decoder_(std::move(decoder)) {
  if (stops != nullptr) matcher_.emplace(std::move(stops));
}

bool ChoiceDecoder::Push(const SampledToken& token, LogitsRow logits,
                         std::vector<TokenPiece>& out) {
  ++num_tokens_;
  TokenPiece piece =
      PieceOf(token, decoder_ == nullptr ? std::string() : decoder_->Push(token.token));
  piece.logits = std::move(logits);
  if (!matcher_) {
    out.push_back(std::move(piece));
    return false;
  }
  const StopMatcher::Output shown = matcher_->Push(piece.text);
  held_.push_back(std::move(piece));
  released_bytes_ += shown.emit.size();
  Release(out);
  if (!shown.matched) return false;
  // The stop string begins inside the first piece still held back: show the text before it.
  if (released_bytes_ > shown_bytes_ && !held_.empty()) {
    held_.front().text.resize(released_bytes_ - shown_bytes_);
    out.push_back(std::move(held_.front()));
  }
  held_.clear();
  return true;
}

void ChoiceDecoder::Flush(std::vector<TokenPiece>& out) {
  const std::string tail = decoder_ == nullptr ? std::string() : decoder_->Flush();
  for (TokenPiece& piece : held_) out.push_back(std::move(piece));
  held_.clear();
  if (tail.empty()) return;
  // It belongs to the last token; if that one has already been given out, it forms a separate
  // piece.
  if (out.empty()) {
    TokenPiece piece;
    piece.token = -1;
    out.push_back(std::move(piece));
  }
  out.back().text += tail;
}

void ChoiceDecoder::Release(std::vector<TokenPiece>& out) {
  while (!held_.empty() && shown_bytes_ + held_.front().text.size() <= released_bytes_) {
    shown_bytes_ += held_.front().text.size();
    out.push_back(std::move(held_.front()));
    held_.pop_front();
  }
}

}  // namespace tandem::serve
