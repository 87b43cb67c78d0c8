#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The first part of some bytes: a character, the start of one, or neither.
struct Utf8Prefix {
  enum Kind { kCharacter, kIncomplete, kInvalid } kind;
  size_t length;  // of the character, or of the invalid part
};

// Table 3-7 of the Unicode standard: the bytes that may follow a lead byte.
Utf8Prefix Classify(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Prefix::kCharacter, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Prefix::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte's range depends on the lead: no overlong form, no surrogate, nothing above
  // U+10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Prefix::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Prefix::kInvalid, i};
    low = 0x80, high = 0xBF;
  }
  return {Utf8Prefix::kCharacter, length};
}

}  // namespace

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::exchange(pending_, {}).append(bytes);
    bytes = joined;
  }
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Prefix prefix = Classify(bytes);
    if (prefix.kind == Utf8Prefix::kIncomplete) {
      pending_ = bytes;
      break;
    }
    text += prefix.kind == Utf8Prefix::kCharacter ? bytes.substr(0, prefix.length) : kReplacement;
    bytes.remove_prefix(prefix.length);
  }
  return text;
}

std::string Utf8Stream::Flush() {
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(kReplacement);
}

std::string Detokenizer::Push(int32_t id) {
  if (skip_special_ && tokenizer_->IsSpecial(id)) return {};
  const std::string_view bytes = tokenizer_->TokenBytes(id);
  if (bytes.empty()) return {};
  return utf8_.Push(std::exchange(at_start_, false) ? tokenizer_->FirstBytes(id) : bytes);
}

void Detokenizer::GoPast(std::span<const int32_t> ids) {
  for (const int32_t id : ids) Push(id);
}

std::string Decode(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const int32_t> ids,
                   bool skip_special) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

}  // namespace tandem
