// The GPU ranks of a build without a CUDA compiler: there are none.
#include "comm/cuda/cuda_ranks.h"
#include "comm/gpu_links.h"

namespace tandem {

Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanks(
    std::span<ops::Backend* const> /*backends*/, int /*stages*/) {
  return Unavailable("this program was built without CUDA; ./setup --cuda, then build it again");
}

GpuLinks ReadGpuLinks() { return {}; }

}  // namespace tandem
