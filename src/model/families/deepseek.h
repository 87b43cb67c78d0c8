// DeepSeek V2 and V3 (R1): multi-head latent attention, and experts beside shared ones. Layers that
// predict further tokens are left out.
#pragma once

#include "model/family.h"

namespace tandem {

Family DeepSeekV2Family();
Family DeepSeekV3Family();

}  // namespace tandem
