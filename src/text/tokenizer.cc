#include "text/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/printable.h"
#include "text/rust_bridge.h"

namespace tandem {

using rust_bridge::OwnedBuffer;
using rust_bridge::ToStatus;
using rust_bridge::View;

struct Tokenizer::SortedIds {
  std::once_flag made;
  std::vector<int32_t> ids;
};

namespace {

std::optional<int32_t> OptionalId(int64_t id) {
  if (id < 0) return std::nullopt;
  return static_cast<int32_t>(id);
}

// A token in the form for error messages.
std::string Quoted(std::string_view bytes) { return "\"" + Printable(bytes.substr(0, 64)) + "\""; }

}  // namespace

Result<std::shared_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& model_dir,
                                                   Options options) {
  TextTokenizer* handle = nullptr;
  OwnedBuffer error;
  const std::string path = model_dir.string();
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_tokenizer_new(View(path), View(options.config_overrides), &handle, error.out()),
      error));
  return std::shared_ptr<Tokenizer>(new Tokenizer(handle, options));
}

Tokenizer::Tokenizer(TextTokenizer* handle, Options options)
    : handle_(handle), options_(options), sorted_(std::make_unique<SortedIds>()) {
  TandemTextTokenizerInfo info;
  tandem_text_tokenizer_info(handle, &info);
  kind_ = rust_bridge::Text(info.kind);
  vocab_size_ = static_cast<int32_t>(info.vocab_size);
  fingerprint_ = info.fingerprint;
  bos_id_ = OptionalId(info.bos_id);
  pad_id_ = OptionalId(info.pad_id);
  eos_ids_.assign(info.eos_ids, info.eos_ids + info.eos_count);
}

Tokenizer::~Tokenizer() { tandem_text_tokenizer_free(handle_); }

Status Tokenizer::CheckLength(std::string_view text) const {
  if (text.size() <= options_.max_text_bytes) return {};
  return InvalidArgument("the text has " + std::to_string(text.size()) + " bytes; at most " +
                         std::to_string(options_.max_text_bytes) + " are tokenized");
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_special) const {
  TANDEM_RETURN_IF_ERROR(CheckLength(text));
  TandemTextIds ids{nullptr, 0};
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_tokenizer_encode(handle_, View(text), add_special, &ids, error.out()), error));
  std::vector<int32_t> result(ids.data, ids.data + ids.len);
  tandem_text_ids_free(ids);
  return result;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0) return {};
  return rust_bridge::Text(tandem_text_tokenizer_token_bytes(handle_, static_cast<uint32_t>(id)));
}

std::string_view Tokenizer::FirstBytes(int32_t id) const {
  if (id < 0) return {};
  return rust_bridge::Text(tandem_text_tokenizer_first_bytes(handle_, static_cast<uint32_t>(id)));
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  return OptionalId(tandem_text_tokenizer_token_to_id(handle_, View(token)));
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && tandem_text_tokenizer_is_special(handle_, static_cast<uint32_t>(id));
}

std::optional<int32_t> Tokenizer::SpecialId(std::string_view token) const {
  const std::optional<int32_t> id = TokenToId(token);
  return id && IsSpecial(*id) ? id : std::nullopt;
}

Status Tokenizer::FitsVocabulary(int64_t model_vocab) const {
  for (auto id = static_cast<int32_t>(std::min<int64_t>(model_vocab, vocab_size_));
       id < vocab_size_; ++id) {
    if (IsSpecial(id) || TokenBytes(id).empty()) continue;
    return InvalidArgument("the tokenizer is not this model's: its token " + std::to_string(id) +
                           ", " + Quoted(TokenBytes(id)) + ", has no row in the model, whose " +
                           "vocabulary goes from 0 to " + std::to_string(model_vocab - 1) +
                           "; use the tokenizer that came with it");
  }
  return {};
}

Status Tokenizer::CompatibleWith(const Tokenizer& other) const {
  if (fingerprint_ == other.fingerprint_) return {};
  const int32_t shared = std::min(vocab_size_, other.vocab_size_);
  for (int32_t id = 0; id < shared; ++id) {
    if (IsSpecial(id) && other.IsSpecial(id)) continue;
    if (IsSpecial(id) == other.IsSpecial(id) && TokenBytes(id) == other.TokenBytes(id)) continue;
    return InvalidArgument("the tokenizers differ: token " + std::to_string(id) + " is " +
                           Quoted(TokenBytes(id)) + (IsSpecial(id) ? " (special)" : "") +
                           " in one and " + Quoted(other.TokenBytes(id)) +
                           (other.IsSpecial(id) ? " (special)" : "") + " in the other");
  }
  const Tokenizer& longer = vocab_size_ > other.vocab_size_ ? *this : other;
  for (int32_t id = shared; id < longer.vocab_size_; ++id) {
    if (longer.IsSpecial(id) || longer.TokenBytes(id).empty()) continue;
    return InvalidArgument("the tokenizers differ: one has " + std::to_string(vocab_size_) +
                           " tokens, the other " + std::to_string(other.vocab_size_) +
                           "; the first that only one has is " + std::to_string(id) + ", " +
                           Quoted(longer.TokenBytes(id)));
  }
  return {};
}

std::string Tokenizer::HarmlessDifference(std::string_view ours, const Tokenizer& other,
                                          std::string_view theirs) const {
  if (fingerprint_ == other.fingerprint_) return {};
  std::string text;
  int32_t renamed = 0;
  for (int32_t id = 0; id < std::min(vocab_size_, other.vocab_size_); ++id) {
    if (TokenBytes(id) == other.TokenBytes(id) || ++renamed > 1) continue;
    text = "special token " + std::to_string(id) + " is " + Quoted(TokenBytes(id)) + " in " +
           std::string(ours) + " and " + Quoted(other.TokenBytes(id)) + " in " +
           std::string(theirs);
  }
  if (renamed > 1) text += " (and " + std::to_string(renamed - 1) + " more are renamed)";
  if (vocab_size_ == other.vocab_size_) return text;
  if (!text.empty()) text += "; ";
  return text + std::string(ours) + " has " + std::to_string(vocab_size_) + " tokens, " +
         std::string(theirs) + " " + std::to_string(other.vocab_size_);
}

std::span<const int32_t> Tokenizer::IdsByBytes() const {
  std::call_once(sorted_->made, [this] {
    std::vector<std::pair<std::string_view, int32_t>> tokens;
    for (int32_t id = 0; id < vocab_size_; ++id) {
      const std::string_view bytes = TokenBytes(id);
      if (!bytes.empty() && !IsSpecial(id)) tokens.emplace_back(bytes, id);
    }
    std::sort(tokens.begin(), tokens.end());
    for (const auto& [bytes, id] : tokens) sorted_->ids.push_back(id);
  });
  return sorted_->ids;
}

}  // namespace tandem
