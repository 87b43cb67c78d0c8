#include "serve/openai/answers/answer_parser.h"

#include <algorithm>
#include <utility>

#include "serve/json.h"

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

size_t SkipSpace(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kWhiteSpace, at), text.size());
}

// The bytes at the end of `text` that may be the beginning of `mark`.
size_t PartialMark(std::string_view text, std::string_view mark) {
  size_t length = std::min(text.size(), mark.size() - 1);
  while (length > 0 && !mark.starts_with(text.substr(text.size() - length))) --length;
  return length;
}

}  // namespace

AnswerParser::AnswerParser(const AnswerFormat& format, CallableTools tools)
    : format_(format), tools_(std::move(tools)) {
  if (format_.reasoning == nullptr || format_.start == ReasoningStart::kClosed) {
    state_ = State::kContent;
  } else if (format_.start == ReasoningStart::kOpen) {
    state_ = State::kReasoning;
  }
  may_be_bare_ = format_.tools != nullptr && format_.tools->may_be_bare && !tools_.need_mark;
}

std::vector<AnswerPart> AnswerParser::Push(std::string_view text) {
  held_ += text;
  std::vector<AnswerPart> out;
  while (Step(/*is_end=*/false, out)) {
  }
  return out;
}

std::vector<AnswerPart> AnswerParser::Flush() {
  std::vector<AnswerPart> out;
  while (Step(/*is_end=*/true, out)) {
  }
  return out;
}

// False when it needs more text.
bool AnswerParser::Step(bool is_end, std::vector<AnswerPart>& out) {
  switch (state_) {
    case State::kStart:
      return StepStart(is_end);
    case State::kReasoning:
      return StepReasoning(is_end, out);
    case State::kAfterReasoning: {
      held_.erase(0, SkipSpace(held_, 0));
      if (held_.empty()) return false;
      state_ = State::kContent;
      return true;
    }
    case State::kContent:
      return StepContent(is_end, out);
    case State::kCall:
      return StepCall(is_end, out);
  }
  return false;
}

bool AnswerParser::StepStart(bool is_end) {
  const size_t first = SkipSpace(held_, 0);
  const std::string_view text = std::string_view(held_).substr(first);
  const std::string_view begin = format_.reasoning->begin;
  if (text.starts_with(begin)) {
    held_.erase(0, first + begin.size());
    state_ = State::kReasoning;
    return true;
  }
  if (!is_end && begin.starts_with(text)) return false;
  state_ = State::kContent;
  return !held_.empty();
}

bool AnswerParser::StepReasoning(bool is_end, std::vector<AnswerPart>& out) {
  const std::string_view end = format_.reasoning->end;
  // White space at both ends is not part of the reasoning.
  if (!has_reasoning_) held_.erase(0, SkipSpace(held_, 0));
  const size_t found = held_.find(end);
  size_t shown = found;
  if (found == held_.npos) shown = held_.size() - (is_end ? 0 : PartialMark(held_, end));
  while (shown > 0 && kWhiteSpace.find(held_[shown - 1]) != kWhiteSpace.npos) --shown;
  has_reasoning_ |= shown > 0;
  Emit(PartKind::kReasoning, shown, out);
  if (found == held_.npos) {
    if (is_end) held_.clear();
    return false;
  }
  held_.erase(0, found - shown + end.size());
  state_ = State::kAfterReasoning;
  return true;
}

bool AnswerParser::StepContent(bool is_end, std::vector<AnswerPart>& out) {
  if (held_.empty()) return false;
  if (format_.tools == nullptr || tools_.names.empty()) {
    Emit(PartKind::kContent, held_.size(), out);
    return false;
  }
  // Llama 3 puts semicolons between calls of one mark.
  if (is_after_call_ && format_.tools->may_be_bare) {
    const size_t next = SkipSpace(held_, 0);
    if (next == held_.size() && !is_end) return false;
    is_after_call_ = false;
    if (next < held_.size() && held_[next] == ';') {
      held_.erase(0, next + 1);
      may_be_bare_ = true;
      return true;
    }
  }
  if (may_be_bare_) {
    const size_t first = SkipSpace(held_, 0);
    if (first == held_.size() && !is_end) return false;
    may_be_bare_ = false;
    if (first < held_.size() && held_[first] == '{') {
      BeginCall(/*is_bare=*/true);
      return true;
    }
  }
  const std::string_view begin = format_.tools->begin;
  const size_t found = held_.find(begin);
  if (found != held_.npos) {
    // White space between calls, and before the first, is of the format.
    const size_t last = std::string_view(held_).substr(0, found).find_last_not_of(kWhiteSpace);
    const size_t shown = last == held_.npos ? 0 : last + 1;
    Emit(PartKind::kContent, shown, out);
    BeginCall(/*is_bare=*/false);
    return true;
  }
  size_t shown = held_.size();
  if (!is_end) {
    shown -= PartialMark(held_, begin);
    while (shown > 0 && kWhiteSpace.find(held_[shown - 1]) != kWhiteSpace.npos) --shown;
  } else if (num_calls_ > 0 && SkipSpace(held_, 0) == held_.size()) {
    held_.clear();
  }
  Emit(PartKind::kContent, std::min(shown, held_.size()), out);
  return false;
}

void AnswerParser::BeginCall(bool is_bare) {
  state_ = State::kCall;
  is_bare_ = is_bare;
  json_end_ = JsonEnd();
  json_found_ = std::string::npos;
}

bool AnswerParser::StepCall(bool is_end, std::vector<AnswerPart>& out) {
  if (tools_.follow_grammar) {
    calls_.Push(held_, num_calls_, out);
    held_.clear();
    return false;
  }
  const ToolFormat& format = *format_.tools;
  const size_t mark = SkipSpace(held_, 0);
  const size_t json = SkipSpace(held_, is_bare_ ? mark : mark + format.begin.size());
  // Gives up: what was held so far is content.
  const auto fail = [&](size_t bytes) {
    Emit(PartKind::kContent, bytes, out);
    state_ = State::kContent;
    return !held_.empty();
  };
  const size_t past_mark = is_bare_ ? mark + 1 : mark + format.begin.size();
  if (json == held_.size()) return is_end ? fail(held_.size()) : false;
  if (held_[json] != '{' && held_[json] != '[') return fail(past_mark);
  if (json_found_ == held_.npos) json_found_ = json_end_.Find(held_, json);
  const size_t end = json_found_;
  if (end == held_.npos) return is_end ? fail(held_.size()) : false;
  size_t rest = end;
  if (!format.end.empty()) {
    rest = SkipSpace(held_, end);
    const std::string_view after = std::string_view(held_).substr(rest);
    if (after.starts_with(format.end)) {
      rest += format.end.size();
    } else if (!is_end && format.end.starts_with(after)) {
      return false;
    } else if (!after.empty()) {
      return fail(past_mark);
    }
  }
  if (!AddCalls(std::string_view(held_).substr(json, end - json), out)) return fail(rest);
  held_.erase(0, rest);
  is_after_call_ = true;
  state_ = State::kContent;
  return true;
}

// Empty: there are none.
std::string_view AnswerParser::ArgumentsOf(std::string_view call) const {
  for (const std::string_view name :
       {format_.tools->arguments, std::string_view("arguments"), std::string_view("parameters")}) {
    const std::string_view arguments = JsonMemberText(call, name);
    if (!arguments.empty()) return arguments;
  }
  return {};
}

// All calls of a JSON text, or none and false. Arguments stay as the model wrote them: a number
// that is read and written again may be another.
bool AnswerParser::AddCalls(std::string_view text, std::vector<AnswerPart>& out) {
  if (!ParseJson(text).ok()) return false;
  const std::vector<std::string_view> calls =
      text.starts_with('[') ? JsonItems(text) : std::vector{text};
  std::vector<std::string> names;
  for (const std::string_view call : calls) {
    if (!call.starts_with('{')) return false;
    const Result<Json> name = ParseJson(JsonMemberText(call, "name"));
    if (!name.ok() || name->AsString() == nullptr) return false;
    if (!ArgumentsOf(call).starts_with('{')) return false;
    // An answer in JSON is no call unless it names a tool.
    const bool is_known = std::ranges::find(tools_.names, *name->AsString()) != tools_.names.end();
    if (is_bare_ && !is_known) return false;
    names.push_back(*name->AsString());
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (num_calls_ > 0 && !tools_.parallel) break;
    const int32_t index = num_calls_++;
    out.push_back({PartKind::kCall, names[i], index});
    out.push_back({PartKind::kArguments, std::string(ArgumentsOf(calls[i])), index});
  }
  return !calls.empty();
}

void AnswerParser::Emit(PartKind kind, size_t bytes, std::vector<AnswerPart>& out) {
  if (bytes == 0) return;
  out.push_back({kind, held_.substr(0, bytes), -1});
  held_.erase(0, bytes);
}

}  // namespace tandem::serve::openai
