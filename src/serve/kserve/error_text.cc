#include "serve/kserve/error_text.h"

#include <fmt/format.h>

#include "base/reason.h"

namespace tandem::serve::kserve {

std::string ErrorText(const Status& error) {
  const bool is_full = error.reason() == Reason::kQueueFull;
  return (is_full ? "Exceeds maximum queue size. " : "") + error.message();
}

Status RefuseDecoupled(std::string_view caller, std::string_view others) {
  return Unimplemented(
      fmt::format("{} doesn't support models with decoupled transaction policy: use {}, or serve "
                  "the model with --decoupled false (in a repository: decoupled: false in its "
                  "config.pbtxt)",
                  caller, others));
}

}  // namespace tandem::serve::kserve
