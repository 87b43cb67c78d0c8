#include "text/chat_template.h"

#include <algorithm>

#include "base/check.h"
#include "text/rust_bridge.h"

namespace tandem {

using rust_bridge::OwnedBuffer;
using rust_bridge::ToStatus;
using rust_bridge::View;

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::FromModelDir(
    const std::filesystem::path& model_dir, std::shared_ptr<const Tokenizer> tokenizer,
    std::string_view config_overrides) {
  TemplateSet* handle = nullptr;
  OwnedBuffer error;
  const std::string path = model_dir.string();
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_template_load(View(path), View(config_overrides), &handle, error.out()), error));
  return Make(handle, std::move(tokenizer));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::FromSource(
    std::string_view source, std::string_view special_tokens_json,
    std::shared_ptr<const Tokenizer> tokenizer) {
  TemplateSet* handle = nullptr;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_template_new(View(source), View(special_tokens_json), &handle, error.out()),
      error));
  return Make(handle, std::move(tokenizer));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::Make(
    TemplateSet* handle, std::shared_ptr<const Tokenizer> tokenizer) {
  std::shared_ptr<const ChatTemplate> made(new ChatTemplate(handle, std::move(tokenizer)));
  if (made->tokenizer_ == nullptr) return made;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(
      ToStatus(tandem_text_template_guard(handle, made->tokenizer_->handle_, error.out()), error));
  return made;
}

ChatTemplate::~ChatTemplate() { tandem_text_template_free(handle_); }

Result<ChatText> ChatTemplate::Render(std::string_view messages_json,
                                      const RenderOptions& options) const {
  OwnedBuffer text;
  TandemTextIds own{nullptr, 0};
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_template_render(
          handle_, View(messages_json), View(options.variables_json), options.add_generation_prompt,
          options.now_unix_seconds.value_or(-1), text.out(), &own, error.out()),
      error));
  ChatText chat{text.ToString(), {own.data, own.data + own.len}};
  tandem_text_ids_free(own);
  return chat;
}

Result<std::vector<int32_t>> ChatTemplate::Encode(std::string_view beginning,
                                                  const ChatText& chat) const {
  TANDEM_CHECK(tokenizer_ != nullptr, "a chat is encoded by a template with a tokenizer");
  TANDEM_RETURN_IF_ERROR(tokenizer_->CheckLength(beginning));
  std::vector<uint32_t> own = chat.own;
  while (!own.empty() && own.end()[-2] >= beginning.size()) own.resize(own.size() - 2);
  if (!own.empty()) own.back() = std::min(own.back(), static_cast<uint32_t>(beginning.size()));
  TandemTextIds ids{nullptr, 0};
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(
      ToStatus(tandem_text_template_encode(handle_, tokenizer_->handle_, View(beginning),
                                           own.data(), own.size(), &ids, error.out()),
               error));
  std::vector<int32_t> tokens(ids.data, ids.data + ids.len);
  tandem_text_ids_free(ids);
  return tokens;
}

bool ChatTemplate::Stopped() const { return tandem_text_template_stopped(handle_); }

std::string_view ChatTemplate::Source(bool has_tools) const {
  return rust_bridge::Text(tandem_text_template_source(handle_, has_tools));
}

}  // namespace tandem
