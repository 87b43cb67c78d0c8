// BLOOM.
#pragma once

#include "model/family.h"

namespace tandem {

Family BloomFamily();

}  // namespace tandem
