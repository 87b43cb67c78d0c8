#include "text/rust_bridge.h"

namespace tandem::rust_bridge {

Status ToStatus(uint32_t code, const OwnedBuffer& error) {
  switch (code) {
    case TANDEM_TEXT_OK:
      return {};
    case TANDEM_TEXT_INVALID_ARGUMENT:
      return InvalidArgument(error.ToString());
    case TANDEM_TEXT_NOT_FOUND:
      return NotFound(error.ToString());
    case TANDEM_TEXT_RESOURCE_EXHAUSTED:
      // The input exceeded a limit, so it is the client's error and not the server's.
      return InvalidArgument(error.ToString());
    case TANDEM_TEXT_DATA_LOSS:
      return DataLoss(error.ToString());
    case TANDEM_TEXT_UNIMPLEMENTED:
      return Unimplemented(error.ToString());
    case TANDEM_TEXT_UNAVAILABLE:
      return Unavailable(error.ToString());
    case TANDEM_TEXT_SYSTEM_LIMIT:
      return ResourceExhausted(error.ToString());
    default:
      return Internal(error.ToString());
  }
}

}  // namespace tandem::rust_bridge
