#include "serve/openai/answers/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/json.h"
#include "serve/openai/answers/reasoning_grammar.h"

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kAnyObject = R"({"type":"object"})";

// llguidance's JSON with one grammar in Lark and the schemas that it refers to.
//
// A schema stays a document of its own, so that its references keep their meaning. What stands
// around it is fixed text, as the chat templates of the formats write calls, and so are the blanks
// inside the arguments: with a free choice a small model writes blanks until its tokens are used
// up.
class GrammarWriter {
 public:
  GrammarWriter(const ToolRequest& tools, const AnswerFormat& format, const OutputGrammar* answer,
                const TextCodec& codec)
      : tools_(tools), format_(format), call_(*format.tools), answer_(answer), codec_(codec) {}

  std::string Write() {
    WriteStart();
    WriteCalls();
    lark_ += "ANY: /(.|\\n)*/\nWS: /[ \\t\\r\\n]{1,8}/\n";
    std::string out;
    JsonWriter writer(out);
    writer.BeginObject().Key("grammars").BeginArray();
    writer.BeginObject().Key("lark_grammar").String(lark_).EndObject();
    for (const auto& [name, schema] : schemas_) {
      writer.BeginObject().Key("name").String(name).Key("json_schema").Value(schema).EndObject();
    }
    writer.EndArray().EndObject();
    return out;
  }

 private:
  bool IsSpecial(std::string_view mark) const { return codec_.SpecialToken(mark).has_value(); }

  static std::string Quoted(std::string_view text) {
    std::string quoted;
    AppendJsonString(text, quoted);
    return quoted;
  }

  // Text in which the marks of calls that are special tokens are those tokens.
  std::string Text(std::string_view text) const {
    std::string out;
    while (!text.empty()) {
      size_t next = text.npos;
      std::string_view mark;
      for (const std::string_view candidate : {call_.begin, call_.end}) {
        if (candidate.empty() || !IsSpecial(candidate)) continue;
        const size_t found = text.find(candidate);
        if (found < next) {
          next = found;
          mark = candidate;
        }
      }
      const std::string_view plain = text.substr(0, next);
      if (!plain.empty()) out += Quoted(plain) + " ";
      if (next == text.npos) break;
      out += MarkSymbol(mark, codec_);
      text.remove_prefix(next + mark.size());
    }
    return out;
  }

  // Reasoning, if there is some, and what follows it.
  void WriteStart() {
    const std::string rest = tools_.must_call() ? "WS? calls" : WriteFree();
    if (format_.reasoning == nullptr || format_.start == ReasoningStart::kClosed) {
      lark_ = fmt::format("start: {}\n", tools_.must_call() ? "calls" : rest) + lark_;
      return;
    }
    const bool opened = format_.start == ReasoningStart::kOpen;
    lark_ =
        fmt::format("start: {} rest\nrest: {}\n", opened ? "thought" : "thought?", rest) + lark_;
    lark_ += ThoughtRule(*format_.reasoning, opened, codec_);
  }

  // An answer that may call: text up to the mark of the first call, or text alone. Returns the
  // expansion, and writes its rules.
  std::string WriteFree() {
    if (answer_ != nullptr) {
      schemas_.emplace_back("answer", AnswerSchema());
      return "WS? (@answer | marked)";
    }
    // Text that the answer's reader would take for something else.
    std::string barred;
    const bool thinks = format_.reasoning != nullptr && format_.start == ReasoningStart::kUnopened;
    if (thinks && !IsSpecial(format_.reasoning->begin)) {
      barred += fmt::format(" & ~(WS? {} ANY)", Quoted(format_.reasoning->begin));
    }
    if (call_.may_be_bare) barred += " & ~(WS? \"{\" ANY)";
    const std::string bare = call_.may_be_bare ? " | after_mark" : "";
    if (IsSpecial(call_.begin)) {
      lark_ += fmt::format("TEXT: /(.|\\n)+/{}\n", barred);
      return fmt::format("TEXT? marked?{}", bare);
    }
    const std::string mark = Quoted(call_.begin);
    lark_ += fmt::format("TEXT: /(.|\\n)+/ & ~(ANY {} ANY){}\n", mark, barred);
    lark_ += fmt::format("BEFORE: ANY{}\n", barred);
    // Lazy: it ends with the first mark.
    lark_ += fmt::format("mark[lazy]: BEFORE {}\n", mark);
    return fmt::format("TEXT? | mark after_mark{}", bare);
  }

  void WriteCalls() {
    lark_ += fmt::format("marked: {}after_mark\n", Text(call_.begin));
    const std::string more = tools_.parallel ? fmt::format(" ({}call)*", Text(call_.between)) : "";
    lark_ += fmt::format("after_mark: {}call{} {}\n", Text(call_.open), more, Text(call_.close));
    lark_ += fmt::format("calls: marked{}\n", call_.may_be_bare ? " | after_mark" : "");
    for (size_t i = 0; i < tools_.tools.size(); ++i) {
      const Tool& tool = tools_.tools[i];
      const std::string head =
          fmt::format("{{\"name\": {}, \"{}\": ", Quoted(tool.name), call_.arguments);
      const bool has_schema = tools_.follows_schema(tool);
      const std::string schema = has_schema ? fmt::format("f{}", i) : "object";
      lark_ += fmt::format("{} {} @{} \"}}\"\n", i == 0 ? "call:" : "    |", Quoted(head), schema);
      if (has_schema) schemas_.emplace_back(schema, Compact(tool.schema, !tool.is_strict));
      has_object_ |= !has_schema;
    }
    if (has_object_) schemas_.emplace_back("object", Compact(kAnyObject, /*lenient=*/false));
  }

  Json AnswerSchema() const {
    const bool is_schema = answer_->kind != GrammarKind::kJsonObject;
    return Compact(is_schema ? std::string_view(answer_->text) : kAnyObject,
                   answer_->kind == GrammarKind::kLooseJsonSchema);
  }

  // The schema with llguidance's options, unless the client has set them.
  static Json Compact(std::string_view schema, bool lenient) {
    Result<Json> read = ParseJson(schema, {.allow_duplicates = true});
    if (!read.ok() || read->AsObject() == nullptr) return read.ok() ? *read : Json();
    Json::Object members = *read->AsObject();
    const auto given = std::ranges::find(members, "x-guidance", &JsonMember::name);
    if (given != members.end()) {
      if (lenient && given->value.AsObject() != nullptr &&
          given->value.Find("lenient") == nullptr) {
        Json::Object own = *given->value.AsObject();
        own.push_back({"lenient", Json(true)});
        given->value = Json(std::move(own));
      }
      return Json(std::move(members));
    }
    Json::Object options;
    options.push_back({"whitespace_flexible", Json(false)});
    options.push_back({"item_separator", Json(std::string(", "))});
    options.push_back({"key_separator", Json(std::string(": "))});
    options.push_back({"lenient", Json(lenient)});
    members.push_back({"x-guidance", Json(std::move(options))});
    return Json(std::move(members));
  }

  const ToolRequest& tools_;
  const AnswerFormat& format_;
  const ToolFormat& call_;
  const OutputGrammar* const answer_;
  const TextCodec& codec_;
  std::string lark_;
  std::vector<std::pair<std::string, Json>> schemas_;
  bool has_object_ = false;
};

// Whether the function's schema is followed as far as it can be.
bool IsLoose(const ToolRequest& tools, const Tool& tool) {
  return tools.follows_schema(tool) && !tool.is_strict;
}

// `tools` without the loose schemas that cannot be followed; without any loose one if each can,
// because then they cannot be followed together.
ToolRequest Loosened(ToolRequest tools, const TextCodec& codec) {
  size_t tried = 0;
  bool all_can = true;
  for (Tool& tool : tools.tools) {
    if (!IsLoose(tools, tool)) continue;
    const OutputGrammar alone{
        .kind = GrammarKind::kLooseJsonSchema, .text = tool.schema, .field = tool.field};
    if (++tried <= kMaxGrammarParts && codec.FollowGrammar(alone, codec.end_ids()).ok()) continue;
    tool.schema.clear();
    all_can = false;
  }
  if (!all_can) return tools;
  for (Tool& tool : tools.tools) {
    if (IsLoose(tools, tool)) tool.schema.clear();
  }
  return tools;
}

}  // namespace

std::shared_ptr<const OutputGrammar> ToolGrammar(const ToolRequest& tools,
                                                 const AnswerFormat& format,
                                                 const OutputGrammar* answer,
                                                 const TextCodec& codec) {
  auto grammar = std::make_shared<OutputGrammar>();
  grammar->kind = GrammarKind::kGuidance;
  grammar->text = GrammarWriter(tools, format, answer, codec).Write();
  grammar->field = "tools";
  for (const Tool& tool : tools.tools) {
    if (!tool.is_strict) continue;
    grammar->parts.push_back({.kind = GrammarKind::kJsonSchema,
                              .text = tool.schema,
                              .field = tool.field,
                              .owner = fmt::format("the function \"{}\"", tool.name)});
  }
  if (answer != nullptr) grammar->parts.push_back(*answer);
  const auto is_loose = [&tools](const Tool& tool) { return IsLoose(tools, tool); };
  if (answer == nullptr && std::ranges::any_of(tools.tools, is_loose)) {
    grammar->looser = [tools, format, &codec] {
      return ToolGrammar(Loosened(tools, codec), format, nullptr, codec);
    };
  }
  return grammar;
}

}  // namespace tandem::serve::openai
