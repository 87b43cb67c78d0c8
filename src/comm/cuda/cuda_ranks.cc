#include "comm/cuda/cuda_ranks.h"

#include "comm/cuda/stream_ranks.cuh"
#include "ops/cuda/context.cuh"

namespace tandem {

Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanks(
    std::span<ops::Backend* const> backends, int stages) {
  std::vector<ops::cuda::Context> contexts;
  for (const ops::Backend* backend : backends) {
    const ops::cuda::Context* const context = ops::cuda::ContextOf(*backend);
    if (context == nullptr) {
      return InvalidArgument("\"" + backend->Describe() + "\" is no GPU, so it cannot be a rank");
    }
    contexts.push_back(*context);
  }
  return cuda_ranks::MakeStreamRanks(contexts, {.one_shot_bytes = {}, .stages = stages});
}

}  // namespace tandem
