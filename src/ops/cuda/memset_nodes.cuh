// A graph of kernels in a line is launched in 3 us, however many they are; with a memset among them
// the host walks the nodes, 67 us for a step of Llama-3.1-8B. The library's products have some.
#pragma once

#include <cuda_runtime.h>

namespace tandem::ops::cuda {

// Puts a kernel that writes the same into the place of every memset node of a recorded graph.
void ReplaceMemsets(cudaGraph_t graph);

}  // namespace tandem::ops::cuda
