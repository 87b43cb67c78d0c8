// StarCoder2.
#pragma once

#include "model/family.h"

namespace tandem {

Family StarCoder2Family();

}  // namespace tandem
