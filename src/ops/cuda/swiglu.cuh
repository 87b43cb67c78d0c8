// The value of SwiGLU, for the kernel of that op and for products that apply it to their sums.
#pragma once

namespace tandem::ops::cuda {

// exp overflows to infinity for a large negative gate, which gives the zero it should.
__device__ inline float SwiGluOf(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

}  // namespace tandem::ops::cuda
