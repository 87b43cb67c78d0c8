// ResponsesAnswer: the parts of a chat answer as they come → the output items of a response, and
// the events of its stream. Owned by one response's source; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json.h"
#include "serve/openai/answers/answer_part.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

enum class ItemStatus : uint8_t { kInProgress, kCompleted, kIncomplete };
std::string_view ItemStatusName(ItemStatus status);

// Numbers the events of one stream and writes them. Every event begins with its type.
class EventWriter {
 public:
  // `members` writes the event's own members; the event is appended to `events`.
  void Add(std::string_view type, const std::function<void(JsonWriter&)>& members,
           std::vector<std::string>& events);
  // The type of an event that this class has written.
  static std::string_view TypeOf(std::string_view event);

 private:
  int64_t next_ = 0;  // sequence number
};

class ResponsesAnswer {
 public:
  // `id`: unique, for the items' ids. `codec` outlives it. With `logprobs` items keep those of
  // their tokens.
  ResponsesAnswer(std::string id, bool logprobs, const TextCodec& codec)
      : id_(std::move(id)), logprobs_(logprobs), codec_(codec) {}

  // A part that begins a call has the call's id. `pieces`: the tokens whose text has ended in this
  // part, if log-probabilities are wanted.
  void Add(const AnswerPart& part, std::span<const TokenPiece> pieces, EventWriter& writer,
           std::vector<std::string>& events);
  // The answer is complete, or was cut off. An answer without any part is an empty message.
  void End(bool is_whole, EventWriter& writer, std::vector<std::string>& events);

  // The items so far, as a JSON array.
  void WriteItems(JsonWriter& writer) const;

 private:
  struct Item {
    PartKind kind = PartKind::kContent;  // kCall: a function call
    std::string id;
    std::string name;     // of a call
    std::string call_id;  // of a call
    std::string text;     // or arguments
    std::vector<TokenPiece> pieces;
    ItemStatus status = ItemStatus::kInProgress;
  };

  void Open(PartKind kind, const AnswerPart& part, EventWriter& writer,
            std::vector<std::string>& events);
  void Close(ItemStatus status, EventWriter& writer, std::vector<std::string>& events);
  void WriteItem(const Item& item, JsonWriter& writer) const;
  void WriteContent(const Item& item, JsonWriter& writer) const;
  void WriteLogprobs(std::span<const TokenPiece> pieces, JsonWriter& writer) const;
  void WritePlace(JsonWriter& writer) const;

  const std::string id_;
  const bool logprobs_;
  const TextCodec& codec_;
  std::vector<Item> items_;  // the last one is open unless it has its final status
};

}  // namespace tandem::serve::openai
