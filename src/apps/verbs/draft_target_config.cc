#include "apps/verbs/draft_target_config.h"

#include <fmt/core.h>

#include <charconv>
#include <string>

namespace tandem::apps {
namespace {

constexpr int kMaxDraftLen = 64;

// Parses the few forms of the value from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool Take(char c) {
    SkipSpace();
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool TakeWord(std::string_view word) {
    SkipSpace();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  bool TakeInt(int& value) {
    SkipSpace();
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc{} || value < 0) return false;
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return true;
  }

  bool TakeInts(std::vector<int>& values) {
    if (!Take('[')) return false;
    do {
      int value = 0;
      if (!TakeInt(value)) return false;
      values.push_back(value);
    } while (Take(','));
    return Take(']');
  }

  bool AtEnd() {
    SkipSpace();
    return text_.empty();
  }

 private:
  void SkipSpace() {
    while (text_.starts_with(' ')) text_.remove_prefix(1);
  }
  std::string_view text_;
};

bool ReadBool(Reader& reader, bool& value) {
  value = reader.TakeWord("True") || reader.TakeWord("true");
  return value || reader.TakeWord("False") || reader.TakeWord("false");
}

}  // namespace

Result<DraftTargetConfig> ParseDraftTargetConfig(std::string_view text) {
  Reader reader(text);
  DraftTargetConfig config;
  const bool read = reader.Take('[') && reader.TakeInt(config.draft_len) && reader.Take(',') &&
                    reader.TakeInts(config.draft_devices) && reader.Take(',') &&
                    reader.TakeInts(config.target_devices) && reader.Take(',') &&
                    ReadBool(reader, config.use_logits) && reader.Take(']') && reader.AtEnd();
  if (!read || config.draft_len < 1 || config.draft_len > kMaxDraftLen) {
    return InvalidArgument(
        fmt::format("'{}' is not [draft_len,[draft devices],[target devices],use_logits], "
                    "as in [4,[0],[1],False], with a draft_len from 1 to {}",
                    text, kMaxDraftLen));
  }
  return config;
}

}  // namespace tandem::apps
