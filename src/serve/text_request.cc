#include "serve/text_request.h"

#include <iterator>
#include <utility>

namespace tandem::serve {

void TextChoice::Add(TextEvent event, bool keep_pieces) {
  for (const TokenPiece& piece : event.pieces) {
    text += piece.text;
    num_tokens += piece.token >= 0 ? 1 : 0;
  }
  if (keep_pieces) {
    pieces.insert(pieces.end(), std::make_move_iterator(event.pieces.begin()),
                  std::make_move_iterator(event.pieces.end()));
  }
  if (!event.context_logits.empty()) context_logits = std::move(event.context_logits);
  if (event.prompt != nullptr) prompt = std::move(event.prompt);
  finish = event.finish;
  if (event.end) end = std::move(event.end);
  usage = event.usage;
  reasoning = event.reasoning;
}

}  // namespace tandem::serve
