// gpt-oss: experts in MXFP4, attention sinks, windows in every other layer.
#pragma once

#include "model/family.h"

namespace tandem {

Family GptOssFamily();

}  // namespace tandem
