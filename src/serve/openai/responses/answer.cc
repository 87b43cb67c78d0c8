#include "serve/openai/responses/answer.h"

#include <fmt/format.h>

#include <utility>

#include "serve/openai/completions/response.h"

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kTypeKey = R"({"type":")";

// The names of one kind of item: of its id, itself, its part, and the events of its text.
struct KindNames {
  std::string_view id_prefix, item, part, delta, done, text;
};
KindNames NamesOf(PartKind kind) {
  if (kind == PartKind::kReasoning) {
    return {"rs",
            "reasoning",
            "reasoning_text",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "text"};
  }
  if (kind == PartKind::kCall) {
    return {"fc",
            "function_call",
            "",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "arguments"};
  }
  return {
      "msg", "message", "output_text", "response.output_text.delta", "response.output_text.done",
      "text"};
}

}  // namespace

std::string_view ItemStatusName(ItemStatus status) {
  switch (status) {
    case ItemStatus::kInProgress:
      return "in_progress";
    case ItemStatus::kCompleted:
      return "completed";
    case ItemStatus::kIncomplete:
      return "incomplete";
  }
  return "";
}

void EventWriter::Add(std::string_view type, const std::function<void(JsonWriter&)>& members,
                      std::vector<std::string>& events) {
  std::string event;
  JsonWriter writer(event);
  writer.BeginObject().Key("type").String(type).Key("sequence_number").Int(next_++);
  members(writer);
  writer.EndObject();
  events.push_back(std::move(event));
}

std::string_view EventWriter::TypeOf(std::string_view event) {
  if (!event.starts_with(kTypeKey)) return {};
  event.remove_prefix(kTypeKey.size());
  return event.substr(0, event.find('"'));
}

void ResponsesAnswer::Add(const AnswerPart& part, std::span<const TokenPiece> pieces,
                          EventWriter& writer, std::vector<std::string>& events) {
  const PartKind kind = part.kind == PartKind::kArguments ? PartKind::kCall : part.kind;
  const bool is_open = !items_.empty() && items_.back().status == ItemStatus::kInProgress;
  const bool goes_on = is_open && items_.back().kind == kind && part.kind != PartKind::kCall;
  if (!goes_on) {
    Close(ItemStatus::kCompleted, writer, events);
    Open(kind, part, writer, events);
  }
  if (part.kind == PartKind::kCall) return;
  Item& item = items_.back();
  item.text += part.text;
  const bool has_logprobs = kind == PartKind::kContent;
  if (has_logprobs) item.pieces.insert(item.pieces.end(), pieces.begin(), pieces.end());
  writer.Add(
      NamesOf(kind).delta,
      [&](JsonWriter& event) {
        WritePlace(event);
        event.Key("delta").String(part.text);
        if (has_logprobs) WriteLogprobs(pieces, event);
      },
      events);
}

void ResponsesAnswer::End(bool is_whole, EventWriter& writer, std::vector<std::string>& events) {
  if (items_.empty() && is_whole) Open(PartKind::kContent, {}, writer, events);
  Close(is_whole ? ItemStatus::kCompleted : ItemStatus::kIncomplete, writer, events);
}

// `part` is the item's first.
void ResponsesAnswer::Open(PartKind kind, const AnswerPart& part, EventWriter& writer,
                           std::vector<std::string>& events) {
  Item item;
  item.kind = kind;
  item.id = fmt::format("{}_{}_{}", NamesOf(kind).id_prefix, id_, items_.size());
  if (part.kind == PartKind::kCall) {
    item.name = part.text;
    item.call_id = part.id;
  }
  items_.push_back(std::move(item));
  writer.Add(
      "response.output_item.added",
      [&](JsonWriter& event) {
        event.Key("output_index").Int(static_cast<int64_t>(items_.size()) - 1);
        event.Key("item");
        WriteItem(items_.back(), event);
      },
      events);
  if (kind == PartKind::kCall) return;
  writer.Add(
      "response.content_part.added",
      [&](JsonWriter& event) {
        WritePlace(event);
        event.Key("part");
        WriteContent(items_.back(), event);
      },
      events);
}

// The last item, if it is open.
void ResponsesAnswer::Close(ItemStatus status, EventWriter& writer,
                            std::vector<std::string>& events) {
  if (items_.empty() || items_.back().status != ItemStatus::kInProgress) return;
  Item& item = items_.back();
  const KindNames names = NamesOf(item.kind);
  writer.Add(
      names.done,
      [&](JsonWriter& event) {
        WritePlace(event);
        if (item.kind == PartKind::kCall) event.Key("name").String(item.name);
        event.Key(names.text).String(item.text);
        if (item.kind == PartKind::kContent) WriteLogprobs(item.pieces, event);
      },
      events);
  if (item.kind != PartKind::kCall) {
    writer.Add(
        "response.content_part.done",
        [&](JsonWriter& event) {
          WritePlace(event);
          event.Key("part");
          WriteContent(item, event);
        },
        events);
  }
  item.status = status;
  writer.Add(
      "response.output_item.done",
      [&](JsonWriter& event) {
        event.Key("output_index").Int(static_cast<int64_t>(items_.size()) - 1);
        event.Key("item");
        WriteItem(item, event);
      },
      events);
}

void ResponsesAnswer::WriteItems(JsonWriter& writer) const {
  writer.BeginArray();
  for (const Item& item : items_) WriteItem(item, writer);
  writer.EndArray();
}

// An open item is written as it begins: its text comes in events.
void ResponsesAnswer::WriteItem(const Item& item, JsonWriter& writer) const {
  writer.BeginObject().Key("type").String(NamesOf(item.kind).item).Key("id").String(item.id);
  writer.Key("status").String(ItemStatusName(item.status));
  const bool is_open = item.status == ItemStatus::kInProgress;
  if (item.kind == PartKind::kCall) {
    writer.Key("call_id").String(item.call_id).Key("name").String(item.name);
    writer.Key("arguments").String(item.text);
  } else {
    if (item.kind == PartKind::kReasoning) writer.Key("summary").BeginArray().EndArray();
    if (item.kind == PartKind::kContent) writer.Key("role").String("assistant");
    writer.Key("content").BeginArray();
    if (!is_open) WriteContent(item, writer);
    writer.EndArray();
  }
  writer.EndObject();
}

// The one part of a message or of reasoning.
void ResponsesAnswer::WriteContent(const Item& item, JsonWriter& writer) const {
  writer.BeginObject().Key("type").String(NamesOf(item.kind).part).Key("text").String(item.text);
  if (item.kind == PartKind::kContent) {
    writer.Key("annotations").BeginArray().EndArray();
    WriteLogprobs(item.pieces, writer);
  }
  writer.EndObject();
}

// Clients expect the list, wanted or not.
void ResponsesAnswer::WriteLogprobs(std::span<const TokenPiece> pieces, JsonWriter& writer) const {
  writer.Key("logprobs").BeginArray();
  for (const TokenPiece& piece : pieces) {
    if (logprobs_ && piece.token >= 0) WriteTokenLogprob(codec_, piece, writer);
  }
  writer.EndArray();
}

// Where the last item, and its only part, stand in the response.
void ResponsesAnswer::WritePlace(JsonWriter& writer) const {
  writer.Key("item_id").String(items_.back().id);
  writer.Key("output_index").Int(static_cast<int64_t>(items_.size()) - 1);
  if (items_.back().kind != PartKind::kCall) writer.Key("content_index").Int(0);
}

}  // namespace tandem::serve::openai
