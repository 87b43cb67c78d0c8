// OPT.
#pragma once

#include "model/family.h"

namespace tandem {

Family OptFamily();

}  // namespace tandem
