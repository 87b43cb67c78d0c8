// TextCodec: everything about a model's text that the service needs: text to tokens and back, the
// chat template, banned words. Every id it gives is the model's. Immutable once loaded: any thread
// may use it. A Decoder belongs to one choice.
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

namespace tandem::serve {

class TextCodec {
 public:
  // Turns a choice's tokens into text, a whole UTF-8 character at a time.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    // The text that `token` completed; may be empty.
    virtual std::string Push(int32_t token) = 0;
    // What an unfinished character leaves at the end.
    virtual std::string Flush() = 0;
    // Another one in the same state.
    virtual std::unique_ptr<Decoder> Clone() const = 0;
  };

  virtual ~TextCodec() = default;

  // INVALID_ARGUMENT when the text spells a token that the model has no row for.
  virtual Result<std::vector<int32_t>> Encode(std::string_view text,
                                              bool add_special_tokens) const = 0;
  // Of the text that continues `prompt`, so that the two join as their tokens do; an empty prompt:
  // of a text that stands by itself.
  virtual std::unique_ptr<Decoder> NewDecoder(std::span<const int32_t> prompt) const = 0;
  // The bytes a token adds to a text.
  virtual std::string TokenBytes(int32_t token) const = 0;
  // Ids below it are tokens of both the tokenizer and the model.
  virtual int32_t vocab_size() const = 0;
  // The special token that is written so, and that the model can draw: it adds no text, so what is
  // said of its name has to be done by its id.
  virtual std::optional<int32_t> SpecialToken(std::string_view name) const = 0;
  // Tokens that end an answer.
  virtual std::vector<int32_t> end_ids() const = 0;

  // `messages` is a JSON array of {role, content}. FAILED_PRECONDITION without a chat template.
  virtual Result<std::string> RenderChat(std::string_view messages) const = 0;

  // A constraint under which none of the words is ever generated, however it is spelled in tokens.
  virtual Result<std::shared_ptr<const TokenConstraint>> BanWords(
      const std::vector<std::string>& words) const = 0;
};

// Reads tokenizer.json and what stands beside it, for a model of `model_vocab` tokens.
// INVALID_ARGUMENT when that cannot be its tokenizer.
Result<std::unique_ptr<TextCodec>> LoadTextCodec(const std::filesystem::path& model_dir,
                                                 int64_t model_vocab);

}  // namespace tandem::serve
