// Errors in KServe's shape: {"error":"..."}. Pure functions.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/http/message.h"

namespace tandem::serve::kserve {

std::string FormatError(std::string_view message);
std::string FormatStatus(const Status& error);
// Status code (503 for a full queue), Retry-After where it helps, and the body.
std::unique_ptr<Reply> ErrorReply(const Status& error);
HttpHead ErrorHead(const Status& error);

}  // namespace tandem::serve::kserve
