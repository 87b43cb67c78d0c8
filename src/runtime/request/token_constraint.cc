#include "runtime/request/request.h"

namespace tandem {

std::vector<int32_t> TokenConstraint::Forced() { return {}; }

Status TokenConstraint::AtDeadEnd() {
  return InvalidArgument(
      "the constraint allows no token and no end here; loosen the grammar or the bad words");
}

}  // namespace tandem
