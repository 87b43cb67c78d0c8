// The GPU ranks of a build without a CUDA compiler: there are none.
#include "comm/cuda/cuda_ranks.h"
#include "comm/gpu_links.h"

namespace tandem {
namespace {

Status WithoutCuda() {
  return Unavailable("this program was built without CUDA; ./setup --cuda, then build it again");
}

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanks(
    std::span<ops::Backend* const> /*backends*/, const Stages& /*stages*/) {
  return WithoutCuda();
}

Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanksOfProcesses(
    std::span<ops::Backend* const> /*backends*/, const std::shared_ptr<Communicator>& /*processes*/,
    int /*stages*/) {
  return WithoutCuda();
}

GpuLinks ReadGpuLinks() { return {}; }

}  // namespace tandem
