#include "comm/cuda/cuda_ranks.h"

#include "comm/cuda/nccl_ranks.cuh"
#include "comm/cuda/stream_ranks.cuh"
#include "ops/cuda/device/context.cuh"

namespace tandem {
namespace {

Result<std::vector<ops::cuda::Context>> ContextsOf(std::span<ops::Backend* const> backends) {
  std::vector<ops::cuda::Context> contexts;
  for (const ops::Backend* backend : backends) {
    const ops::cuda::Context* const context = ops::cuda::ContextOf(*backend);
    if (context == nullptr) {
      return InvalidArgument("\"" + backend->Describe() + "\" is no GPU, so it cannot be a rank");
    }
    contexts.push_back(*context);
  }
  return contexts;
}

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanks(
    std::span<ops::Backend* const> backends, const Stages& stages) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ops::cuda::Context> contexts, ContextsOf(backends));
  return cuda_ranks::MakeStreamRanks(contexts, {.one_shot_bytes = {}, .stages = stages});
}

Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanksOfProcesses(
    std::span<ops::Backend* const> backends, const std::shared_ptr<Communicator>& processes,
    int stages) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ops::cuda::Context> contexts, ContextsOf(backends));
  return cuda_ranks::MakeNcclRanks(contexts, processes, stages);
}

}  // namespace tandem
