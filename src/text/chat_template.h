// A model's chat template: messages in, prompt text out, as transformers renders it. Immutable and
// shared by threads. A template is untrusted input: it runs in a separate thread with limits on
// steps, memory and depth, for at most 100 ms of that thread's time plus 0.5 us for each byte of
// its input; beyond that the result is INVALID_ARGUMENT. A template that builds data without end
// can leave threads that cannot be ended; with four of them its Render is UNAVAILABLE
// (rust/text/src/sandbox.rs).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

struct TemplateSet;  // the handle of rust/text

namespace tandem {

// A rendered chat.
struct ChatText {
  std::string text;
  // Begin and end, in bytes, of each part of a control token's name that the template itself wrote.
  // Empty without a tokenizer (ChatTemplate::FromModelDir).
  std::vector<uint32_t> own;
};

class ChatTemplate {
 public:
  struct RenderOptions {
    // End with the text that opens the assistant's turn.
    bool add_generation_prompt = true;
    // A JSON object of additional variables: tools, documents, date_string, ... Empty means none.
    // `messages` and the special tokens cannot be set here.
    std::string variables_json = {};
    // The time for strftime_now; the clock when empty.
    std::optional<int64_t> now_unix_seconds = {};
  };

  // The first of chat_template.j2, chat_template.jinja, and `chat_template` of
  // tokenizer_config.json (a string, or named templates, of which "tool_use" serves requests with
  // tools). Else the one that is built in for the model's family. kNotFound when the model has
  // none.
  // A chat_template in `config_overrides` (Tokenizer::Options) goes before all of them.
  // With the model's tokenizer, the names of control tokens (special tokens, and others that the
  // template writes) are told apart by their author: see Encode.
  static Result<std::shared_ptr<const ChatTemplate>> FromModelDir(
      const std::filesystem::path& model_dir, std::shared_ptr<const Tokenizer> tokenizer = nullptr,
      std::string_view config_overrides = {});
  // `special_tokens_json`: an object such as {"bos_token": "<s>", "eos_token": "</s>"}.
  static Result<std::shared_ptr<const ChatTemplate>> FromSource(
      std::string_view source, std::string_view special_tokens_json = "{}",
      std::shared_ptr<const Tokenizer> tokenizer = nullptr);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `messages_json`: an array of {role, content, ...}. The result contains the special tokens that
  // the template wrote: encode it without adding them again. INVALID_ARGUMENT for messages with the
  // name of a control token if the template does not keep its own text apart from theirs, which
  // those of known models do.
  Result<ChatText> Render(std::string_view messages_json, const RenderOptions& options) const;
  Result<ChatText> Render(std::string_view messages_json) const {
    return Render(messages_json, RenderOptions());
  }
  // The tokens of a rendered chat, or of its beginning. Only the template's own text becomes
  // control tokens; their names anywhere else are encoded as text. Needs the tokenizer.
  Result<std::vector<int32_t>> Encode(std::string_view beginning, const ChatText& chat) const;
  // Whether abandoned threads have made Render UNAVAILABLE until the process ends.
  bool Stopped() const;
  // The text of the template that renders requests with tools, or without; lives as long as this.
  std::string_view Source(bool has_tools) const;

 private:
  static Result<std::shared_ptr<const ChatTemplate>> Make(
      TemplateSet* handle, std::shared_ptr<const Tokenizer> tokenizer);
  ChatTemplate(TemplateSet* handle, std::shared_ptr<const Tokenizer> tokenizer)
      : handle_(handle), tokenizer_(std::move(tokenizer)) {}
  TemplateSet* handle_;                               // owned
  const std::shared_ptr<const Tokenizer> tokenizer_;  // may be null
};

}  // namespace tandem
