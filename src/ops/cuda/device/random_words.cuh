// Fills device memory with random words.
#pragma once

#include "ops/cuda/device/context.cuh"
#include "ops/random_words.h"

namespace tandem::ops::cuda {

// Bytes of words.At(0), words.At(1), ...; the last word may be cut. `out` is aligned to 8 bytes.
void FillRandomWords(const Context& context, void* out, int64_t bytes, const RandomWords& words);

// Whether this program has kernels for the current GPU; false for a generation that it was not
// compiled for.
bool HasKernelsForDevice();

}  // namespace tandem::ops::cuda
