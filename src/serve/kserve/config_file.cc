#include "serve/kserve/config_file.h"

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <model_config.pb.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/options.h"
#include "base/printable.h"

namespace tandem::serve::kserve {
namespace {

namespace pb = google::protobuf;

constexpr int kMostNested = 64;  // messages within messages

// Variables of the known templates that cannot just be left out: without them a model would have
// tensors without a batch dimension or a type, or could not stream.
struct VariableDefault {
  std::string_view variable;
  std::string_view text;
};
constexpr VariableDefault kVariableDefaults[] = {
    {"triton_max_batch_size", "64"},
    {"decoupled_mode", "true"},
    {"logits_datatype", "TYPE_FP32"},
    {"encoder_input_features_data_type", "TYPE_FP16"},
    {"prompt_embedding_table_data_type", "TYPE_FP16"},
};

std::string_view DefaultOf(std::string_view variable) {
  for (const VariableDefault& row : kVariableDefaults) {
    if (row.variable == variable) return row.text;
  }
  return {};
}

bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// The name in the `${name}` (or, if `bare`, `$name`) at the start of `text`, and its length with
// the marks; nothing when there is none.
struct Variable {
  std::string_view name;
  size_t length = 0;
};
std::optional<Variable> VariableAt(std::string_view text, bool bare) {
  const bool braced = text.starts_with("${");
  if (!braced && (!bare || !text.starts_with('$'))) return std::nullopt;
  const size_t begin = braced ? 2 : 1;
  size_t end = begin;
  while (end < text.size() && IsWordCharacter(text[end])) ++end;
  if (end == begin || (braced && (end == text.size() || text[end] != '}'))) return std::nullopt;
  return Variable{text.substr(begin, end - begin), end + (braced ? 1 : 0)};
}

// Replaces variables that stand where a number, a word or a truth value belongs: by their default,
// or, with their field, by spaces. Lines stay what they are.
class Filler {
 public:
  Filler(std::string_view text, std::vector<Unfilled>& unfilled)
      : text_(text), unfilled_(unfilled) {}

  std::string Run() {
    while (at_ < text_.size()) Step();
    return std::move(out_);
  }

 private:
  void Step() {
    const char c = text_[at_];
    if (c == '#') return Keep(std::min(text_.find('\n', at_), text_.size()) - at_);
    if (c == '"' || c == '\'') return KeepString(c);
    if (c == '$') {
      if (const auto variable = VariableAt(text_.substr(at_), true)) return Replace(*variable);
    }
    if (IsWordCharacter(c)) return KeepWord();
    if (c == ':') field_begin_ = word_begin_;
    if (c == '[') list_begin_ = field_begin_;
    if (c == '[' || c == '{' || c == '<') open_ += c;
    if ((c == ']' || c == '}' || c == '>') && !open_.empty()) open_.pop_back();
    if (!IsSpace(c)) last_ = c;
    Keep(1);
  }

  void Keep(size_t count) {
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + at_ + count, '\n'));
    out_ += text_.substr(at_, count);
    at_ += count;
  }

  void KeepString(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    Keep(std::min(end + 1, text_.size()) - at_);
    last_ = quote;
  }

  void KeepWord() {
    size_t end = at_;
    while (end < text_.size() && IsWordCharacter(text_[end])) ++end;
    word_begin_ = out_.size();
    last_ = 'w';
    Keep(end - at_);
  }

  void Replace(const Variable& variable) {
    const bool in_list = open_.ends_with('[') && (last_ == '[' || last_ == ',');
    if (!in_list && last_ != ':') return Keep(1);  // for the parser to refuse
    const size_t field = in_list ? list_begin_ : field_begin_;
    const std::string_view value = DefaultOf(variable.name);
    unfilled_.push_back({line_, KeyAt(field), std::string(variable.name), std::string(value)});
    at_ += variable.length;
    if (!value.empty()) {
      out_ += value;
      last_ = 'w';
      return;
    }
    if (!in_list) Blank(field);
    // A separator would separate nothing: the one after the variable goes, or else that before it.
    const size_t next = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    if (next < text_.size() && (text_[next] == ',' || text_[next] == ';')) {
      Keep(next - at_);
      out_ += ' ';
      ++at_;
    } else if (in_list && last_ == ',') {
      Blank(out_.rfind(','));
    }
  }

  std::string KeyAt(size_t begin) const {
    size_t end = begin;
    while (end < out_.size() && IsWordCharacter(out_[end])) ++end;
    return out_.substr(begin, end - begin);
  }

  // What was written from there on becomes space.
  void Blank(size_t begin) {
    for (size_t i = std::min(begin, out_.size()); i < out_.size(); ++i) {
      if (out_[i] != '\n') out_[i] = ' ';
    }
  }

  const std::string_view text_;
  std::vector<Unfilled>& unfilled_;
  std::string out_;
  size_t at_ = 0;
  int line_ = 1;
  std::string open_;  // brackets that are not closed yet
  char last_ = '\0';  // the last character that is no space; 'w' for a word, a quote for a string
  // Places in out_: of the last word, of the last one before a colon, of the name of the last list.
  size_t word_begin_ = 0;
  size_t field_begin_ = 0;
  size_t list_begin_ = 0;
};

// The first error of a parse, as a person reads it.
class FirstError : public pb::io::ErrorCollector {
 public:
  void AddError(int line, pb::io::ColumnNumber, const std::string& message) override {
    if (message_.empty()) {
      line_ = std::max(line, 0);
      message_ = message;
    }
  }
  Status ToStatus(std::string_view text, std::string_view name) const {
    std::string_view line = text;
    for (int i = 0; i < line_; ++i) {
      line.remove_prefix(std::min(line.find('\n'), line.size() - 1) + 1);
    }
    line = line.substr(0, line.find('\n'));
    const std::string key = KeyIn(line);
    return InvalidArgument(fmt::format("{}:{}: {}{}", name, line_ + 1,
                                       key.empty() ? "" : key + ": ", Sentence()))
        .WithField(key);
  }

 private:
  static std::string KeyIn(std::string_view line) {
    const size_t begin = std::min(line.find_first_not_of(" \t{[,"), line.size());
    size_t end = begin;
    while (end < line.size() && IsWordCharacter(line[end])) ++end;
    return std::string(line.substr(begin, end - begin));
  }

  std::string Sentence() const {
    constexpr std::string_view kUnknown = "has no field named \"";
    const size_t at = message_.find(kUnknown);
    if (at == std::string::npos) return Printable(message_);
    std::string_view field = std::string_view(message_).substr(at + kUnknown.size());
    field = field.substr(0, field.find('"'));
    std::string_view type = std::string_view(message_).substr(0, at);
    type = type.substr(std::min(type.find('"'), type.size() - 1) + 1);
    type = type.substr(0, type.find('"'));
    const std::string closest = ClosestField(type, field);
    return fmt::format("there is no field \"{}\"{}", Printable(field),
                       closest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", closest));
  }

  static std::string ClosestField(std::string_view type, std::string_view field) {
    const pb::Descriptor* message =
        pb::DescriptorPool::generated_pool()->FindMessageTypeByName(std::string(type));
    if (message == nullptr) return {};
    std::vector<std::string_view> names;
    for (int i = 0; i < message->field_count(); ++i) names.push_back(message->field(i)->name());
    return std::string(ClosestName(field, names));
  }

  int line_ = 0;
  std::string message_;
};

// The line on which `part` first stands.
int LineOf(std::string_view text, std::string_view part) {
  const size_t at = std::min(text.find(part), text.size());
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + at, '\n'));
}

// Empties texts that hold a variable. `key` names the field in which the message stands.
class TextClearer {
 public:
  TextClearer(std::string_view text, std::vector<Unfilled>& unfilled)
      : text_(text), unfilled_(unfilled) {}

  void Clear(pb::Message& message, const std::string& key) {
    const pb::Reflection& reflection = *message.GetReflection();
    std::vector<const pb::FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    const bool is_entry = message.GetDescriptor()->map_key() != nullptr;
    for (const pb::FieldDescriptor* field : fields) {
      if (is_entry && field->name() == "key") continue;
      // The value of an entry of a map is named by the entry's key.
      const std::string name = is_entry || field->name() == "string_value" ? key : field->name();
      if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING) {
        ClearTexts(message, *field, name);
      } else if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
        ClearMessages(message, *field, name);
      }
    }
  }

 private:
  void ClearTexts(pb::Message& message, const pb::FieldDescriptor& field, const std::string& name) {
    const pb::Reflection& reflection = *message.GetReflection();
    const bool repeated = field.is_repeated();
    const int count = repeated ? reflection.FieldSize(message, &field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string value = repeated ? reflection.GetRepeatedString(message, &field, i)
                                         : reflection.GetString(message, &field);
      const std::optional<Variable> variable = FindVariable(value);
      if (!variable) continue;
      const std::string marked = fmt::format("${{{}}}", variable->name);
      unfilled_.push_back({LineOf(text_, marked), name, std::string(variable->name), ""});
      if (repeated) {
        reflection.SetRepeatedString(&message, &field, i, "");
      } else {
        reflection.SetString(&message, &field, "");
      }
    }
  }

  void ClearMessages(pb::Message& message, const pb::FieldDescriptor& field,
                     const std::string& name) {
    const pb::Reflection& reflection = *message.GetReflection();
    if (!field.is_repeated()) return Clear(*reflection.MutableMessage(&message, &field), name);
    const int count = reflection.FieldSize(message, &field);
    for (int i = 0; i < count; ++i) {
      pb::Message& element = *reflection.MutableRepeatedMessage(&message, &field, i);
      Clear(element, field.is_map() ? MapKey(element, name) : name);
    }
  }

  static std::string MapKey(const pb::Message& entry, const std::string& name) {
    const pb::FieldDescriptor* key = entry.GetDescriptor()->map_key();
    if (key->cpp_type() != pb::FieldDescriptor::CPPTYPE_STRING) return name;
    return entry.GetReflection()->GetString(entry, key);
  }

  static std::optional<Variable> FindVariable(std::string_view value) {
    for (size_t at = value.find("${"); at != std::string_view::npos;
         at = value.find("${", at + 1)) {
      if (const auto variable = VariableAt(value.substr(at), false)) return variable;
    }
    return std::nullopt;
  }

  const std::string_view text_;
  std::vector<Unfilled>& unfilled_;
};

template <typename Tensor>
Status CheckTensor(const Tensor& tensor, std::string_view kind, std::string_view name) {
  if (tensor.name().empty()) {
    return InvalidArgument(fmt::format("{}: {}: an {} needs a name", name, kind, kind))
        .WithField(kind);
  }
  if (tensor.data_type() == inference::TYPE_INVALID) {
    return InvalidArgument(fmt::format("{}: {} \"{}\" needs a data_type such as TYPE_INT32", name,
                                       kind, Printable(tensor.name())))
        .WithField(kind);
  }
  return {};
}

}  // namespace

Status ReadConfigText(std::string_view text, std::string_view name, inference::ModelConfig& config,
                      std::vector<Unfilled>& unfilled) {
  const std::string filled = Filler(text, unfilled).Run();
  FirstError error;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kMostNested);
  config.Clear();
  if (!parser.ParseFromString(filled, &config)) return error.ToStatus(filled, name);
  TextClearer(text, unfilled).Clear(config, "");
  for (const inference::ModelInput& input : config.input()) {
    TANDEM_RETURN_IF_ERROR(CheckTensor(input, "input", name));
  }
  for (const inference::ModelOutput& output : config.output()) {
    TANDEM_RETURN_IF_ERROR(CheckTensor(output, "output", name));
  }
  return {};
}

std::string DescribeUnfilled(std::string_view name, const std::vector<Unfilled>& unfilled) {
  std::string fields;
  for (const Unfilled& field : unfilled) {
    fields += fmt::format("{}{} (line {}, ${{{}}}{})", fields.empty() ? "" : ", ",
                          Printable(field.key), field.line, field.variable,
                          field.default_value.empty() ? "" : ": " + field.default_value);
  }
  return fmt::format("{}: variables of the template are not filled in, defaults are used: {}", name,
                     fields);
}

}  // namespace tandem::serve::kserve
