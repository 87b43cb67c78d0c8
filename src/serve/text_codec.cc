#include "serve/text_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "serve/grammar_constraint.h"
#include "text/bad_words.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace tandem::serve {
namespace {

class TokenizerDecoder final : public TextCodec::Decoder {
 public:
  TokenizerDecoder(std::shared_ptr<const Tokenizer> tokenizer, std::span<const int32_t> prompt,
                   bool skip_special)
      : detokenizer_(std::move(tokenizer), skip_special) {
    detokenizer_.GoPast(prompt);
  }
  std::string Push(int32_t token) override { return detokenizer_.Push(token); }
  std::string Flush() override { return detokenizer_.Flush(); }
  std::unique_ptr<Decoder> Clone() const override {
    return std::make_unique<TokenizerDecoder>(*this);
  }

 private:
  Detokenizer detokenizer_;
};

// The automaton of banned words as an engine's constraint.
class BadWordsConstraint final : public TokenConstraint {
 public:
  explicit BadWordsConstraint(std::shared_ptr<const BadWords> words)
      : words_(std::move(words)), state_(words_->Start()) {}

  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    words_->Mask(StateAfter(ahead), allowed);
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    state_ = StateAfter({tokens, static_cast<size_t>(num_tokens)});
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<BadWordsConstraint>(*this);
  }

 private:
  int StateAfter(std::span<const int32_t> tokens) const {
    int state = state_;
    for (const int32_t token : tokens) state = words_->Next(state, token);
    return state;
  }

  std::shared_ptr<const BadWords> words_;
  int state_;
};

class ModelTextCodec final : public TextCodec {
 public:
  ModelTextCodec(std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<const ChatTemplate> chat, std::shared_ptr<GrammarSet> grammars,
                 int64_t model_vocab)
      : tokenizer_(std::move(tokenizer)),
        chat_(std::move(chat)),
        grammars_(std::move(grammars)),
        vocab_size_(static_cast<int32_t>(std::min<int64_t>(tokenizer_->VocabSize(), model_vocab))) {
  }

  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      bool add_special_tokens) const override {
    return CheckTokens(tokenizer_->Encode(text, add_special_tokens));
  }
  Result<std::vector<int32_t>> EncodeChat(std::string_view beginning,
                                          const ChatText& chat) const override {
    TANDEM_CHECK(chat_ != nullptr, "a chat was rendered without a template");
    return CheckTokens(chat_->Encode(beginning, chat));
  }
  std::unique_ptr<Decoder> NewDecoder(std::span<const int32_t> prompt,
                                      bool skip_special) const override {
    return std::make_unique<TokenizerDecoder>(tokenizer_, prompt, skip_special);
  }
  std::string TokenBytes(int32_t token) const override {
    return std::string(tokenizer_->TokenBytes(token));
  }
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> SpecialToken(std::string_view name) const override {
    const std::optional<int32_t> id = tokenizer_->SpecialId(name);
    return id && IsModels(*id) ? id : std::nullopt;
  }
  std::optional<int32_t> bos_id() const override { return tokenizer_->BosId(); }
  std::optional<int32_t> pad_id() const override { return tokenizer_->PadId(); }
  std::vector<int32_t> end_ids() const override {
    std::vector<int32_t> ids;
    std::ranges::copy_if(tokenizer_->EosIds(), std::back_inserter(ids),
                         [this](int32_t id) { return IsModels(id); });
    return ids;
  }
  Result<ChatText> RenderChat(std::string_view messages,
                              const ChatTemplate::RenderOptions& options) const override {
    if (chat_ == nullptr) {
      return FailedPrecondition("this model has no chat template; use /v1/completions");
    }
    return chat_->Render(messages, options);
  }
  std::string_view ChatSource(bool has_tools) const override {
    return chat_ == nullptr ? std::string_view() : chat_->Source(has_tools);
  }
  bool ChatHasStopped() const override { return chat_ != nullptr && chat_->Stopped(); }
  bool GrammarsHaveStopped() const override { return grammars_->Stopped(); }
  Result<std::shared_ptr<const TokenConstraint>> BanWords(
      const std::vector<std::string>& words) const override {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const BadWords> automaton,
                            BadWords::Compile(tokenizer_, words));
    return std::shared_ptr<const TokenConstraint>(std::make_shared<BadWordsConstraint>(automaton));
  }
  Result<std::shared_ptr<const TokenConstraint>> FollowGrammar(
      const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const override {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const GrammarState> start,
                            grammars_->Compile(grammar.kind, grammar.text, grammar.thought));
    return ConstraintFrom(std::move(start), grammar.field, end_ids);
  }
  Result<std::shared_ptr<const TokenConstraint>> FollowKnownGrammar(
      const OutputGrammar& grammar, const std::vector<int32_t>& end_ids) const override {
    std::shared_ptr<const GrammarState> start =
        grammars_->Find(grammar.kind, grammar.text, grammar.thought);
    if (start == nullptr) return std::shared_ptr<const TokenConstraint>();
    return ConstraintFrom(std::move(start), grammar.field, end_ids);
  }

 private:
  Result<std::shared_ptr<const TokenConstraint>> ConstraintFrom(
      std::shared_ptr<const GrammarState> start, const std::string& field,
      const std::vector<int32_t>& end_ids) const {
    TANDEM_ASSIGN_OR_RETURN(
        std::unique_ptr<GrammarConstraint> constraint,
        GrammarConstraint::Create(std::move(start),
                                  std::make_shared<const std::vector<int32_t>>(end_ids), tokenizer_,
                                  field));
    return std::shared_ptr<const TokenConstraint>(std::move(constraint));
  }

  // Refuses tokens that the model has no row for.
  Result<std::vector<int32_t>> CheckTokens(Result<std::vector<int32_t>> tokens) const {
    if (!tokens.ok()) return tokens;
    const auto beyond = std::ranges::find_if(*tokens, [this](int32_t id) { return !IsModels(id); });
    if (beyond == tokens->end()) return tokens;
    return InvalidArgument(
        fmt::format("the text spells the token \"{}\" ({}), which this model does not have: its "
                    "vocabulary goes from 0 to {}",
                    tokenizer_->TokenBytes(*beyond), *beyond, vocab_size_ - 1));
  }

  // A special token's id may lie beyond the model's.
  bool IsModels(int32_t id) const { return id < vocab_size_; }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const ChatTemplate> chat_;  // null when the model has none
  const std::shared_ptr<GrammarSet> grammars_;
  const int32_t vocab_size_;
};

}  // namespace

Result<std::unique_ptr<TextCodec>> LoadTextCodec(const std::filesystem::path& model_dir,
                                                 int64_t model_vocab,
                                                 const TextCodecOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(
      std::shared_ptr<Tokenizer> tokenizer,
      Tokenizer::Load(model_dir, {.config_overrides = options.config_overrides}));
  if (const Status fits = tokenizer->FitsVocabulary(model_vocab); !fits.ok()) {
    return fits.Annotate(model_dir.string());
  }
  std::shared_ptr<const ChatTemplate> chat;
  Result<std::shared_ptr<const ChatTemplate>> loaded =
      ChatTemplate::FromModelDir(model_dir, tokenizer, options.config_overrides);
  if (loaded.ok()) {
    chat = *std::move(loaded);
  } else if (loaded.status().code() != Code::kNotFound) {
    return loaded.status();
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<GrammarSet> grammars,
                          GrammarSet::Create(*tokenizer, model_vocab, options.grammars));
  return std::unique_ptr<TextCodec>(std::make_unique<ModelTextCodec>(
      std::move(tokenizer), std::move(chat), std::move(grammars), model_vocab));
}

}  // namespace tandem::serve
