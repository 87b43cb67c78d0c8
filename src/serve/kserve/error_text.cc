#include "serve/kserve/error_text.h"

#include "base/reason.h"

namespace tandem::serve::kserve {

std::string ErrorText(const Status& error) {
  const bool is_full = error.reason() == Reason::kQueueFull;
  return (is_full ? "Exceeds maximum queue size. " : "") + error.message();
}

}  // namespace tandem::serve::kserve
