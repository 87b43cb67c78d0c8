// TANDEM_VECTOR_CLONES before a function compiles it for several instruction sets; the CPU decides
// once which of them runs. For short loops over FloatX16, whose results are the same bits on all of
// them; what such a function calls must be forced inline.
#pragma once

#include <cstddef>

// The sanitizers cannot instrument the choice, which is made before their own start.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define TANDEM_VECTOR_CLONES [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define TANDEM_VECTOR_CLONES
#endif

namespace tandem {

using FloatX16 = float __attribute__((vector_size(64)));
constexpr size_t kVectorFloats = 16;

// By reference: the way in which vectors are passed differs between instruction sets.
[[gnu::always_inline]] inline void LoadVector(const float* from, FloatX16& vector) {
  __builtin_memcpy(&vector, from, sizeof(vector));
}
[[gnu::always_inline]] inline void StoreVector(float* to, const FloatX16& vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

}  // namespace tandem
