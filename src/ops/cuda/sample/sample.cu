#include <algorithm>

#include "ops/cuda/sample/sample.cuh"
#include "ops/cuda/sample/sample_row.cuh"
#include "ops/cuda/sample/sample_verify.cuh"

namespace tandem::ops::cuda {
namespace {

// Without clusters: the number of tokens of a slice that fits every GPU's shared memory, and the
// device memory for longer slices: a row of 128k tokens for each multiprocessor, much of which fits
// the L2 cache.
constexpr int32_t kMaxSharedSlice = 16'384;
constexpr size_t kWorkspaceBytes = size_t{64} << 20;

size_t SampleSharedBytes(int32_t shared_slice) {
  return sizeof(SampleShared) + static_cast<size_t>(shared_slice) * sizeof(float);
}

bool HasClusters(const Context& context) { return context.compute_capability >= 90; }

// One team per row, its blocks contiguous. slices: [blocks, slice_tokens], one for each block;
// null: they are in shared memory, which the compiler then knows.
template <bool kInShared>
__global__ void __launch_bounds__(kSampleThreads, 2)
    SampleKernel(const SampleRow* rows, int64_t vocab, int32_t slice_tokens, float* slices,
                 SampledToken* out) {
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
  float* const slice = kInShared ? reinterpret_cast<float*>(&shared + 1)
                                 : slices + int64_t{blockIdx.x} * slice_tokens;
  SampleRowDraw(team, row, vocab, slice, slice_tokens).Run(out[index]);
  team.Sync();  // no block leaves while another reads its memory
}

__global__ void __launch_bounds__(kSampleThreads)
    VerifyKernel(const VerifyRow* rows, int64_t vocab, int32_t slice_tokens) {
  __shared__ VerifyShared shared;
  const VerifyRow& row = rows[blockIdx.x / TeamSize()];
  if (row.slot == nullptr) return;
  SampleVerification(shared, row, vocab, slice_tokens).Run();
  SyncTeam();  // as above
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
  config.numAttrs = HasClusters(context) ? 1 : 0;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
            "a sampling kernel");
}

}  // namespace

CudaSampler::CudaSampler(const Context& context) : context_(context) {
  const int32_t slice = HasClusters(context) ? ShapeTeam(kMaxVocab, true).slice : kMaxSharedSlice;
  CheckCuda(cudaFuncSetAttribute(SampleKernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(SampleSharedBytes(slice))),
            "the shared memory of a sampling kernel");
  if (HasClusters(context)) return;
  slices_ = static_cast<float*>(AllocateWorkspace(kWorkspaceBytes, "the workspace of sampling"));
}

CudaSampler::~CudaSampler() { cudaFree(slices_); }

void CudaSampler::Sample(std::span<const SampleRow> rows, int64_t vocab,
                         std::span<SampledToken> out) {
  TANDEM_CHECK(vocab > 0 && vocab <= kMaxVocab, "a vocabulary that a team holds");
  TANDEM_CHECK(out.size() >= rows.size(), "one result a row");
  const TeamShape shape = ShapeTeam(vocab, HasClusters(context_));
  if (HasClusters(context_) || shape.slice <= kMaxSharedSlice) {
    LaunchTeams(context_, rows.size(), shape, SampleSharedBytes(shape.slice), SampleKernel<true>,
                rows.data(), vocab, shape.slice, nullptr, out.data());
    return;
  }
  // As many rows at a time as fit the workspace.
  const size_t most = kWorkspaceBytes / (static_cast<size_t>(shape.slice) * sizeof(float));
  for (size_t first = 0; first < rows.size(); first += most) {
    LaunchTeams(context_, std::min(most, rows.size() - first), shape, SampleSharedBytes(0),
                SampleKernel<false>, rows.data() + first, vocab, shape.slice, slices_,
                out.data() + first);
  }
}

void CudaSampler::VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) {
  TANDEM_CHECK(vocab > 0, "a vocabulary");
  const TeamShape shape = ShapeTeam(vocab, HasClusters(context_));
  LaunchTeams(context_, rows.size(), shape, 0, VerifyKernel, rows.data(), vocab, shape.slice);
}

}  // namespace tandem::ops::cuda
