#include "serve/testing/byte_codec.h"

#include <algorithm>
#include <utility>

#include "serve/json.h"
#include "text/detokenizer.h"

namespace tandem::serve {
namespace {

constexpr const char* kSpecial[] = {"<pad>", "<s>", "</s>"};

class ByteDecoder final : public TextCodec::Decoder {
 public:
  explicit ByteDecoder(bool skip_special) : skip_special_(skip_special) {}
  std::string Push(int32_t token) override {
    if (token < 3) return skip_special_ ? "" : utf8_.Push(kSpecial[token]);
    const char byte = static_cast<char>(token - 3);
    return utf8_.Push(std::string_view(&byte, 1));
  }
  std::string Flush() override { return utf8_.Flush(); }
  std::unique_ptr<Decoder> Clone() const override { return std::make_unique<ByteDecoder>(*this); }

 private:
  bool skip_special_;
  Utf8Stream utf8_;
};

class LastByteBan final : public TokenConstraint {
 public:
  explicit LastByteBan(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  void FillMask(std::span<const int32_t>, std::span<uint32_t> allowed) override {
    for (const int32_t token : tokens_) allowed[token / 32] &= ~(1u << (token % 32));
  }
  void Commit(const int32_t*, int32_t) override {}
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<LastByteBan>(tokens_);
  }

 private:
  const std::vector<int32_t> tokens_;
};

class OneText final : public TokenConstraint {
 public:
  OneText(std::string text, std::vector<int32_t> end_ids)
      : text_(std::move(text)), end_ids_(std::move(end_ids)) {}
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    const size_t at = committed_ + ahead.size();
    std::ranges::fill(allowed, 0u);
    const auto allow = [&](int32_t token) { allowed[token / 32] |= 1u << (token % 32); };
    if (at < text_.size()) allow(ByteCodec::TokenOf(text_[at]));
    if (at == text_.size()) std::ranges::for_each(end_ids_, allow);
  }
  void Commit(const int32_t*, int32_t num_tokens) override {
    committed_ += static_cast<size_t>(num_tokens);
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<OneText>(*this);
  }

 private:
  std::string text_;
  std::vector<int32_t> end_ids_;
  size_t committed_ = 0;
};
// Parts of text are joined by line ends.
std::string ContentOf(const Json& message) {
  const Json& content = *message.Find("content");
  if (content.AsArray() == nullptr) return *content.AsString();
  std::string text;
  for (const Json& part : *content.AsArray()) {
    text += (text.empty() ? "" : "\n") + *part.Find("text")->AsString();
  }
  return text;
}

}  // namespace

std::string ByteCodec::TextOf(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (token >= 3) text += static_cast<char>(token - 3);
  }
  return text;
}

Result<std::vector<int32_t>> ByteCodec::Encode(std::string_view text,
                                               bool add_special_tokens) const {
  std::vector<int32_t> tokens;
  if (add_special_tokens) tokens.push_back(kBegin);
  for (const char byte : text) tokens.push_back(TokenOf(byte));
  return tokens;
}

std::unique_ptr<TextCodec::Decoder> ByteCodec::NewDecoder(std::span<const int32_t> prompt,
                                                          bool skip_special) const {
  auto decoder = std::make_unique<ByteDecoder>(skip_special);
  for (const int32_t token : prompt) decoder->Push(token);
  return decoder;
}

std::string ByteCodec::TokenBytes(int32_t token) const {
  return token < 3 ? "" : std::string(1, static_cast<char>(token - 3));
}

Result<ChatText> ByteCodec::RenderChat(std::string_view messages,
                                       const ChatTemplate::RenderOptions& options) const {
  TANDEM_ASSIGN_OR_RETURN(const Json list, ParseJson(messages));
  std::string text;
  for (const Json& message : *list.AsArray()) {
    text += *message.Find("role")->AsString() + ": " + ContentOf(message) + "\n";
  }
  if (options.add_generation_prompt) text += chat_turn;
  return ChatText{std::move(text), {}};
}

Result<std::vector<int32_t>> ByteCodec::EncodeChat(std::string_view beginning,
                                                   const ChatText&) const {
  return Encode(beginning, /*add_special_tokens=*/false);
}

Result<std::shared_ptr<const TokenConstraint>> ByteCodec::BanWords(
    const std::vector<std::string>& words) const {
  std::vector<int32_t> tokens;
  for (const std::string& word : words) tokens.push_back(TokenOf(word.back()));
  return std::shared_ptr<const TokenConstraint>(std::make_shared<LastByteBan>(std::move(tokens)));
}

Result<std::shared_ptr<const TokenConstraint>> ByteCodec::FollowGrammar(
    const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const {
  if (grammar.text == "refused") return InvalidArgument("the grammar is refused");
  return std::shared_ptr<const TokenConstraint>(std::make_shared<OneText>(grammar.text, end_ids));
}

}  // namespace tandem::serve
