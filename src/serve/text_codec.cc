#include "serve/text_codec.h"

#include <utility>

#include "text/bad_words.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tandem::serve {
namespace {

class TokenizerDecoder final : public TextCodec::Decoder {
 public:
  TokenizerDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool at_start)
      : detokenizer_(std::move(tokenizer), {.skip_special = true, .at_start = at_start}) {}
  std::string Push(int32_t token) override { return detokenizer_.Push(token); }
  std::string Flush() override { return detokenizer_.Flush(); }

 private:
  Detokenizer detokenizer_;
};

// The automaton of banned words as the engine wants it.
class BadWordsConstraint final : public TokenConstraint {
 public:
  explicit BadWordsConstraint(std::shared_ptr<const BadWords> words)
      : words_(std::move(words)), state_(words_->Start()) {}

  void FillMask(const int32_t* ahead, int32_t num_ahead, uint32_t* allowed) override {
    words_->Mask(StateBehind(ahead, num_ahead), allowed);
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    state_ = StateBehind(tokens, num_tokens);
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<BadWordsConstraint>(*this);
  }

 private:
  int StateBehind(const int32_t* tokens, int32_t num_tokens) const {
    int state = state_;
    for (int32_t i = 0; i < num_tokens; ++i) state = words_->Next(state, tokens[i]);
    return state;
  }

  std::shared_ptr<const BadWords> words_;
  int state_;
};

class ModelTextCodec final : public TextCodec {
 public:
  ModelTextCodec(std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<const ChatTemplate> chat)
      : tokenizer_(std::move(tokenizer)), chat_(std::move(chat)) {}

  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      bool add_special_tokens) const override {
    return tokenizer_->Encode(text, add_special_tokens);
  }
  std::unique_ptr<Decoder> NewDecoder(bool at_start) const override {
    return std::make_unique<TokenizerDecoder>(tokenizer_, at_start);
  }
  std::string TokenBytes(int32_t token) const override {
    return std::string(tokenizer_->TokenBytes(token));
  }
  int32_t vocab_size() const override { return tokenizer_->VocabSize(); }
  std::vector<int32_t> end_ids() const override {
    return {tokenizer_->EosIds().begin(), tokenizer_->EosIds().end()};
  }
  Result<std::string> RenderChat(std::string_view messages) const override {
    if (chat_ == nullptr) {
      return FailedPrecondition("this model has no chat template; use /v1/completions");
    }
    return chat_->Render(messages);
  }
  Result<std::shared_ptr<const TokenConstraint>> BanWords(
      const std::vector<std::string>& words) const override {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const BadWords> automaton,
                            BadWords::Compile(tokenizer_, words));
    return std::shared_ptr<const TokenConstraint>(std::make_shared<BadWordsConstraint>(automaton));
  }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const ChatTemplate> chat_;  // null when the model has none
};

}  // namespace

Result<std::unique_ptr<TextCodec>> LoadTextCodec(const std::filesystem::path& model_dir) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Tokenizer> tokenizer, Tokenizer::Load(model_dir));
  std::shared_ptr<const ChatTemplate> chat;
  Result<std::shared_ptr<const ChatTemplate>> loaded = ChatTemplate::FromModelDir(model_dir);
  if (loaded.ok()) {
    chat = *std::move(loaded);
  } else if (loaded.status().code() != Code::kNotFound) {
    return loaded.status();
  }
  return std::unique_ptr<TextCodec>(
      std::make_unique<ModelTextCodec>(std::move(tokenizer), std::move(chat)));
}

}  // namespace tandem::serve
