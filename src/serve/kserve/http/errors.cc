#include "serve/kserve/http/errors.h"

#include "serve/http/router.h"
#include "serve/json.h"
#include "serve/kserve/error_text.h"

namespace tandem::serve::kserve {

std::string FormatError(std::string_view message) {
  std::string out;
  JsonWriter(out).BeginObject().Key("error").String(message).EndObject();
  return out;
}

std::string FormatStatus(const Status& error) { return FormatError(ErrorText(error)); }

HttpHead ErrorHead(const Status& error) {
  const bool is_full = error.code() == Code::kResourceExhausted;
  HttpHead head;
  head.status = is_full ? 503 : HttpStatusOf(error.code());
  if (head.status == 503) head.headers.emplace_back("Retry-After", "1");
  head.log_note = error.message();
  return head;
}

std::unique_ptr<Reply> ErrorReply(const Status& error) {
  return MakeReply(ErrorHead(error), FormatStatus(error));
}

}  // namespace tandem::serve::kserve
