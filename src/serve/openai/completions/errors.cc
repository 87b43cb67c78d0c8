#include "serve/openai/completions/errors.h"

#include "base/reason.h"
#include "serve/http/router.h"
#include "serve/json.h"

namespace tandem::serve::openai {
namespace {

std::string_view TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string_view CodeOf(int status) {
  if (status == 401) return "invalid_api_key";
  if (status == 429) return "rate_limit_exceeded";
  return "";
}

std::string_view CodeOf(Reason reason) {
  if (reason == Reason::kContextLength) return "context_length_exceeded";
  if (reason == Reason::kModelNotFound) return "model_not_found";
  return "";
}

}  // namespace

std::string FormatError(int status, std::string_view message, std::string_view param,
                        std::string_view code) {
  if (code.empty()) code = CodeOf(status);
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("error").BeginObject();
  writer.Key("message").String(message);
  writer.Key("type").String(TypeOf(status));
  writer.Key("param");
  param.empty() ? writer.Null() : writer.String(param);
  writer.Key("code");
  code.empty() ? writer.Null() : writer.String(code);
  writer.EndObject().EndObject();
  return out;
}

std::string FormatStatus(const Status& error) {
  return FormatError(HttpStatusOf(error.code()), error.message(), error.field(),
                     CodeOf(error.reason()));
}

HttpHead ErrorHead(const Status& error) {
  HttpHead head;
  head.status = HttpStatusOf(error.code());
  if (head.status == 429 || head.status == 503) head.headers.emplace_back("Retry-After", "1");
  head.log_note = error.message();
  return head;
}

std::unique_ptr<Reply> ErrorReply(const Status& error) {
  return MakeReply(ErrorHead(error), FormatStatus(error));
}

}  // namespace tandem::serve::openai
