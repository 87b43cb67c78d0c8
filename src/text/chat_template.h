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

#include "base/status.h"

struct TemplateSet;  // the handle of rust/text

namespace tandem {

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
  static Result<std::shared_ptr<const ChatTemplate>> FromModelDir(
      const std::filesystem::path& model_dir);
  // `special_tokens_json`: an object such as {"bos_token": "<s>", "eos_token": "</s>"}.
  static Result<std::shared_ptr<const ChatTemplate>> FromSource(
      std::string_view source, std::string_view special_tokens_json = "{}");
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `messages_json`: an array of {role, content, ...}. The result contains the special tokens that
  // the template wrote: encode it without adding them again.
  Result<std::string> Render(std::string_view messages_json, const RenderOptions& options) const;
  Result<std::string> Render(std::string_view messages_json) const {
    return Render(messages_json, RenderOptions());
  }
  // Whether abandoned threads have made Render UNAVAILABLE until the process ends.
  bool Stopped() const;
  // The default template's text; lives as long as this.
  std::string_view Source() const;

 private:
  explicit ChatTemplate(TemplateSet* handle) : handle_(handle) {}
  TemplateSet* handle_;  // owned
};

}  // namespace tandem
