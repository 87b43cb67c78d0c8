#include "ops/cuda/sample.cuh"
#include "ops/cuda/sample_row.cuh"
#include "ops/cuda/sample_verify.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int64_t kMaxVocab = 400'000;

size_t SampleSharedBytes(const TeamShape& shape) {
  return sizeof(SampleShared) + static_cast<size_t>(shape.slice) * sizeof(float);
}

// A team a row, its blocks side by side.
__global__ void __launch_bounds__(kSampleThreads, 2)
    SampleKernel(const SampleRow* rows, int64_t vocab, int32_t slice_tokens, SampledToken* out) {
  extern __shared__ uint4 shared_memory[];
  auto& shared = *reinterpret_cast<SampleShared*>(shared_memory);
  SampleTeam team(shared);
  const int64_t index = blockIdx.x / static_cast<unsigned>(team.size());
  const SampleRow& row = rows[index];
  if (row.logits == nullptr) {
    if (team.is_leader()) {
      out[index].token = -1;
      out[index].logprob = __int_as_float(0x7fc00000);
      out[index].num_top = 0;
    }
    return;
  }
  auto* slice = reinterpret_cast<float*>(&shared + 1);
  SampleRowDraw(team, row, vocab, slice, slice_tokens).Run(out[index]);
  team.Sync();  // no block leaves while another reads its memory
}

__global__ void __launch_bounds__(kSampleThreads)
    VerifyKernel(const VerifyRow* rows, int64_t vocab, int32_t slice_tokens) {
  __shared__ VerifyShared shared;
  const auto size = cooperative_groups::this_cluster().num_blocks();
  const VerifyRow& row = rows[blockIdx.x / size];
  if (row.slot == nullptr) return;
  SampleVerification(shared, row, vocab, slice_tokens).Run();
  cooperative_groups::this_cluster().sync();  // as above
}

// Launches `kernel` with a team for each of `num_rows` rows.
template <typename... Parameters, typename... Arguments>
void LaunchTeams(const Context& context, size_t num_rows, const TeamShape& shape,
                 size_t shared_bytes, void (*kernel)(Parameters...), Arguments... arguments) {
  if (num_rows == 0) return;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_rows) * static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(kSampleThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
            "a sampling kernel");
}

}  // namespace

CudaSampler::CudaSampler(const Context& context) : context_(context) {
  const auto most = static_cast<int>(SampleSharedBytes(ShapeTeam(kMaxVocab)));
  CheckCuda(cudaFuncSetAttribute(SampleKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
            "the shared memory of a sampling kernel");
}

void CudaSampler::Sample(std::span<const SampleRow> rows, int64_t vocab,
                         std::span<SampledToken> out) {
  TANDEM_CHECK(vocab > 0 && vocab <= kMaxVocab, "a vocabulary that shared memory holds");
  TANDEM_CHECK(out.size() >= rows.size(), "one result a row");
  const TeamShape shape = ShapeTeam(vocab);
  LaunchTeams(context_, rows.size(), shape, SampleSharedBytes(shape), SampleKernel, rows.data(),
              vocab, shape.slice, out.data());
}

void CudaSampler::VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) {
  TANDEM_CHECK(vocab > 0, "a vocabulary");
  const TeamShape shape = ShapeTeam(vocab);
  LaunchTeams(context_, rows.size(), shape, 0, VerifyKernel, rows.data(), vocab, shape.slice);
}

}  // namespace tandem::ops::cuda
