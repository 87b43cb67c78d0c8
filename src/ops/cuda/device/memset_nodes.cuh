// A graph that is a chain of kernels is launched in 3 us, whatever their number; with a memset
// among them the host walks the nodes, which takes 67 us for a step of Llama-3.1-8B. Some of the
// library's products contain memsets.
#pragma once

#include <cuda_runtime.h>

namespace tandem::ops::cuda {

// Replaces every memset node of a recorded graph by a kernel that writes the same bytes.
void ReplaceMemsets(cudaGraph_t graph);

}  // namespace tandem::ops::cuda
