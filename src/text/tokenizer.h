// Text to token ids and back to raw bytes, as a Hugging Face model folder defines them.
// A Tokenizer is immutable after Load and shared by shared_ptr; every method may be called from any
// number of threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct TextTokenizer;  // the handle of rust/text

namespace tandem {

class Tokenizer {
 public:
  struct Options {
    // A longer text is refused: a bound on the time and memory of one Encode.
    size_t max_text_bytes = 16u << 20;
    // A JSON object whose members replace those of tokenizer_config.json; empty: none. With
    // bos_token in it, texts begin with that token, or with none where it is null.
    std::string config_overrides = {};
  };

  // Reads the first that there is of tokenizer.json, tekken.json, tokenizer.model (SentencePiece or
  // ranks of tiktoken), ice_text.model, qwen.tiktoken, and vocab.json with merges.txt; and, where
  // present, tokenizer_config.json, special_tokens_map.json, added_tokens.json,
  // generation_config.json and config.json. Truncation and padding left in tokenizer.json are off.
  static Result<std::shared_ptr<Tokenizer>> Load(const std::filesystem::path& model_dir,
                                                 Options options);
  static Result<std::shared_ptr<Tokenizer>> Load(const std::filesystem::path& model_dir) {
    return Load(model_dir, Options());
  }
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `add_special`: put BOS (and any other tokens that the model wants) around the text. A text made
  // by a chat template already contains them.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special) const;

  // The bytes that the token adds to the decoded text; not always whole characters. Empty for an id
  // without a token. Lives as long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;
  // The bytes it adds as the first token of a text: some decoders drop its space there.
  std::string_view FirstBytes(int32_t id) const;
  std::optional<int32_t> TokenToId(std::string_view token) const;
  // Tokens that the tokenizer's files mark special, and the BOS, EOS, PAD and UNK that they name by
  // text: left out of decoded text by default. An id named only by the model's configuration is not
  // special.
  bool IsSpecial(int32_t id) const;
  // The special token with this text.
  std::optional<int32_t> SpecialId(std::string_view token) const;

  // For people: what the tokenizer is, such as "SentencePiece BPE (tokenizer.model)".
  const std::string& Kind() const { return kind_; }
  // One more than the largest id. A model's own vocabulary may be larger by padding.
  int32_t VocabSize() const { return vocab_size_; }
  std::optional<int32_t> BosId() const { return bos_id_; }
  std::optional<int32_t> PadId() const { return pad_id_; }
  // Every id that ends a generation: those of generation_config.json (else config.json), then the
  // tokenizer's own, and those of the built-in chat template. Empty if no file names one.
  std::span<const int32_t> EosIds() const { return eos_ids_; }

  // Whether a model of `model_vocab` rows can have this tokenizer: each ordinary token needs a row.
  // Special tokens may lie beyond: some folders have special tokens that the model never got rows
  // for (a pad token added for training, an image token in a text model); they can neither be drawn
  // nor be part of a prompt.
  Status FitsVocabulary(int64_t model_vocab) const;

  // Equal when every id has the same bytes and the same specialness.
  uint64_t Fingerprint() const { return fingerprint_; }
  // Ok when ids mean the same in both, so that one may draft for the other: special tokens may have
  // different names, and one side may have further special tokens at the end. Otherwise the message
  // gives the first difference.
  Status CompatibleWith(const Tokenizer& other) const;
  // The remaining differences between two compatible tokenizers: names of special tokens, numbers
  // of tokens. `ours` and `theirs` are the owners' names in the sentences; empty without
  // differences.
  std::string HarmlessDifference(std::string_view ours, const Tokenizer& other,
                                 std::string_view theirs) const;

  // Ids of ordinary tokens with bytes, in the order of their bytes; made on first use.
  std::span<const int32_t> IdsByBytes() const;

  // For the other files of this folder.
  const TextTokenizer* handle() const { return handle_; }

 private:
  friend class ChatTemplate;
  struct SortedIds;
  // A longer text is refused.
  Status CheckLength(std::string_view text) const;
  Tokenizer(TextTokenizer* handle, Options options);

  TextTokenizer* handle_;  // owned
  Options options_;
  std::string kind_;
  int32_t vocab_size_ = 0;
  uint64_t fingerprint_ = 0;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> pad_id_;
  std::vector<int32_t> eos_ids_;
  std::unique_ptr<SortedIds> sorted_;
};

}  // namespace tandem
