// Falcon: RW, 7B, 40B, 180B and Falcon 2.
#pragma once

#include "model/family.h"

namespace tandem {

Family FalconFamily();

}  // namespace tandem
