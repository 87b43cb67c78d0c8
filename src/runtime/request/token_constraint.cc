#include "runtime/request/request.h"

namespace tandem {

Status TokenConstraint::AtDeadEnd() {
  return InvalidArgument(
      "the constraint allows no token and no end here; loosen the grammar or the bad words");
}

}  // namespace tandem
