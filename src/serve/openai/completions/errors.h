// Errors in OpenAI's shape: {"error":{"message","type","param","code"}}. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/http/message.h"

namespace tandem::serve::openai {

std::string FormatError(int status, std::string_view message, std::string_view param = "",
                        std::string_view code = "");
// `param` is the field at fault; `code` comes from the reason, else from the HTTP status.
std::string FormatStatus(const Status& error);
// Status code, Retry-After where it helps, and the body.
std::unique_ptr<Reply> ErrorReply(const Status& error);
HttpHead ErrorHead(const Status& error);

}  // namespace tandem::serve::openai
