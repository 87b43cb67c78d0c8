// ModelIndex: target or draft, in arrays that hold something of both.
#pragma once

#include <cstdint>

namespace tandem {

constexpr int kNumModels = 2;
enum class ModelIndex : uint8_t { kTarget = 0, kDraft = 1 };

}  // namespace tandem
