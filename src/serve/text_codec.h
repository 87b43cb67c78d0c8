// TextCodec: the service's interface to a model's text: text to tokens and back, the chat template,
// banned words. Every id it returns is one of the model's. Immutable once loaded: any thread may
// use it. A Decoder belongs to one choice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/request/request.h"
#include "serve/text_request.h"
#include "text/chat_template.h"

namespace tandem::serve {

class TextCodec {
 public:
  // Turns a choice's tokens into text, one whole UTF-8 character at a time.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    // The text that `token` completed; may be empty.
    virtual std::string Push(int32_t token) = 0;
    // The replacement for an unfinished character at the end.
    virtual std::string Flush() = 0;
    // A copy in the same state.
    virtual std::unique_ptr<Decoder> Clone() const = 0;
  };

  virtual ~TextCodec() = default;

  // INVALID_ARGUMENT when the text contains a token that the model has no row for.
  virtual Result<std::vector<int32_t>> Encode(std::string_view text,
                                              bool add_special_tokens) const = 0;
  // A decoder for text that continues `prompt`, so that the two join as their tokens do; an empty
  // prompt gives one for independent text. Special tokens add no text with `skip_special`, and else
  // their names.
  virtual std::unique_ptr<Decoder> NewDecoder(std::span<const int32_t> prompt,
                                              bool skip_special) const = 0;
  // The bytes a token adds to a text.
  virtual std::string TokenBytes(int32_t token) const = 0;
  // Every id from 0 to this, less one, is a token that both tokenizer and model know.
  virtual int32_t vocab_size() const = 0;
  // The id of the special token with this name, if the model can draw it. Special tokens
  // usually add no text, so stop words and bad words find them by id.
  virtual std::optional<int32_t> SpecialToken(std::string_view name) const = 0;
  // Tokens that end an answer.
  virtual std::vector<int32_t> end_ids() const = 0;
  // The token that begins a text, if the tokenizer has one.
  virtual std::optional<int32_t> bos_id() const = 0;
  // The token that fills short rows of a batch, if the tokenizer has one.
  virtual std::optional<int32_t> pad_id() const = 0;

  // `messages` is a JSON array of {role, content, ...}. FAILED_PRECONDITION without a chat
  // template.
  virtual Result<ChatText> RenderChat(std::string_view messages,
                                      const ChatTemplate::RenderOptions& options) const = 0;
  // The tokens of a rendered chat, or of its beginning: names of control tokens in the messages are
  // text (ChatTemplate::Encode). INVALID_ARGUMENT as for Encode.
  virtual Result<std::vector<int32_t>> EncodeChat(std::string_view beginning,
                                                  const ChatText& chat) const = 0;
  // The text of the chat template that renders requests with tools, or without; empty if the model
  // has none. Lives as long as the codec.
  virtual std::string_view ChatSource(bool has_tools) const = 0;
  // Whether no chat will ever be rendered again in this process (ChatTemplate::Stopped).
  virtual bool ChatHasStopped() const = 0;
  // Whether no grammar will ever be compiled again in this process (GrammarSet::Stopped).
  virtual bool GrammarsHaveStopped() const = 0;

  // A constraint that never allows any of the words, however it is spelled in tokens.
  virtual Result<std::shared_ptr<const TokenConstraint>> BanWords(
      const std::vector<std::string>& words) const = 0;
  // A constraint to the sentences of a grammar. `end_ids` are allowed where one ends. Compiling may
  // take seconds. INVALID_ARGUMENT without a field if the grammar is refused.
  virtual Result<std::shared_ptr<const TokenConstraint>> FollowGrammar(
      const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const = 0;
  // The same if the grammar was compiled lately, else null: compiles nothing.
  virtual Result<std::shared_ptr<const TokenConstraint>> FollowKnownGrammar(
      const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const = 0;
};

struct TextCodecOptions {
  std::string config_overrides;  // as Tokenizer::Options
  GrammarLimits grammars;        // of each grammar
};

// Reads the tokenizer of a folder and the files next to it, for a model of `model_vocab` tokens.
// INVALID_ARGUMENT if the model cannot have this tokenizer.
Result<std::unique_ptr<TextCodec>> LoadTextCodec(const std::filesystem::path& model_dir,
                                                 int64_t model_vocab,
                                                 const TextCodecOptions& options = {});

}  // namespace tandem::serve
