// ByteCodec: a TextCodec without a model: token id = byte + 3; 0 pads ("<pad>"), 1 begins ("<s>"),
// 2 ends ("</s>"). A multi-byte character is several tokens, so every split that a real tokenizer
// can make also occurs here. For tests.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/text_codec.h"

namespace tandem::serve {

class ByteCodec : public TextCodec {
 public:
  static constexpr int32_t kBegin = 1;
  static constexpr int32_t kEnd = 2;
  static int32_t TokenOf(char byte) { return static_cast<unsigned char>(byte) + 3; }
  // Without special tokens.
  static std::string TextOf(const std::vector<int32_t>& tokens);

  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      bool add_special_tokens) const override;
  std::unique_ptr<Decoder> NewDecoder(std::span<const int32_t> prompt,
                                      bool skip_special) const override;
  std::string TokenBytes(int32_t token) const override;
  int32_t vocab_size() const override { return 259; }
  std::optional<int32_t> SpecialToken(std::string_view name) const override {
    return name == "</s>" ? std::optional(kEnd) : std::nullopt;
  }
  std::vector<int32_t> end_ids() const override { return {kEnd}; }
  std::optional<int32_t> bos_id() const override { return kBegin; }
  std::optional<int32_t> pad_id() const override { return 0; }
  // "user: hello\nassistant: "; the last part is `chat_turn`.
  Result<ChatText> RenderChat(std::string_view messages,
                              const ChatTemplate::RenderOptions& options) const override;
  Result<std::vector<int32_t>> EncodeChat(std::string_view beginning,
                                          const ChatText& chat) const override;
  std::string_view ChatSource(bool has_tools) const override {
    return has_tools && !tool_chat_source.empty() ? tool_chat_source : chat_source;
  }
  bool ChatHasStopped() const override { return chat_has_stopped; }
  bool GrammarsHaveStopped() const override { return grammars_have_stopped; }
  // Bans the words' last bytes: enough to check that a constraint reaches the engine.
  Result<std::shared_ptr<const TokenConstraint>> BanWords(
      const std::vector<std::string>& words) const override;
  // Every grammar admits its own text alone: enough to check that it reaches the engine. One of the
  // text "refused" is refused.
  Result<std::shared_ptr<const TokenConstraint>> FollowGrammar(
      const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const override;
  // None is kept.
  Result<std::shared_ptr<const TokenConstraint>> FollowKnownGrammar(
      const OutputGrammar&, const std::vector<int32_t>&) const override {
    return std::shared_ptr<const TokenConstraint>();
  }

  std::atomic<bool> chat_has_stopped{false};
  std::atomic<bool> grammars_have_stopped{false};
  // Shows how answers mark calls and reasoning; RenderChat renders its own format.
  std::string chat_source = "<tool_call> </think>";
  std::string tool_chat_source;           // of chats with tools, if not empty
  std::string chat_turn = "assistant: ";  // what RenderChat opens the assistant's turn with
};

}  // namespace tandem::serve
