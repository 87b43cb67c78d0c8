#include "text/chat_template.h"

#include "text/rust_bridge.h"

namespace tandem {

using rust_bridge::OwnedBuffer;
using rust_bridge::ToStatus;
using rust_bridge::View;

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::FromModelDir(
    const std::filesystem::path& model_dir) {
  TemplateSet* handle = nullptr;
  OwnedBuffer error;
  const std::string path = model_dir.string();
  TANDEM_RETURN_IF_ERROR(
      ToStatus(tandem_text_template_load(View(path), &handle, error.out()), error));
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(handle));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::FromSource(
    std::string_view source, std::string_view special_tokens_json) {
  TemplateSet* handle = nullptr;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_template_new(View(source), View(special_tokens_json), &handle, error.out()),
      error));
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(handle));
}

ChatTemplate::~ChatTemplate() { tandem_text_template_free(handle_); }

Result<std::string> ChatTemplate::Render(std::string_view messages_json,
                                         const RenderOptions& options) const {
  OwnedBuffer text;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_template_render(handle_, View(messages_json), View(options.variables_json),
                                  options.add_generation_prompt,
                                  options.now_unix_seconds.value_or(-1), text.out(), error.out()),
      error));
  return text.ToString();
}

bool ChatTemplate::Stopped() const { return tandem_text_template_stopped(handle_); }

std::string_view ChatTemplate::Source() const {
  return rust_bridge::Text(tandem_text_template_source(handle_));
}

}  // namespace tandem
