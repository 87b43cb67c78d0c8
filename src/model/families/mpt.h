// MPT.
#pragma once

#include "model/family.h"

namespace tandem {

Family MptFamily();

}  // namespace tandem
