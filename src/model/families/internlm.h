// InternLM 1 and InternLM 2 (2.5).
#pragma once

#include "model/family.h"

namespace tandem {

Family InternLmFamily();
Family InternLm2Family();

}  // namespace tandem
