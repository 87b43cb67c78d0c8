#include <algorithm>
#include <vector>

#include "ops/cuda/device/context.cuh"
#include "ops/cuda/device/memset_nodes.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;

// height rows of width elements, `pitch` bytes apart
template <typename T>
__global__ void __launch_bounds__(kThreads)
    FillKernel(void* memory, size_t pitch, T value, size_t width, size_t height) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < width * height; i += stride) {
    auto* const row = reinterpret_cast<T*>(static_cast<char*>(memory) + i / width * pitch);
    row[i % width] = value;
  }
}

template <typename T>
cudaGraphNode_t AddFill(cudaGraph_t graph, const cudaMemsetParams& memset) {
  void* memory = memset.dst;
  size_t pitch = memset.pitch, width = memset.width, height = memset.height;
  T value = static_cast<T>(memset.value);
  void* arguments[] = {&memory, &pitch, &value, &width, &height};
  const auto blocks = CeilDiv(static_cast<int64_t>(width * height), kThreads);
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(FillKernel<T>);
  kernel.gridDim = dim3(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMaxBlocks)));
  kernel.blockDim = dim3(kThreads);
  kernel.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  CheckCuda(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &kernel), "a node that fills");
  return node;
}

cudaGraphNode_t AddFill(cudaGraph_t graph, cudaGraphNode_t memset) {
  cudaMemsetParams params{};
  CheckCuda(cudaGraphMemsetNodeGetParams(memset, &params), "what a memset node writes");
  switch (params.elementSize) {
    case 1:
      return AddFill<uint8_t>(graph, params);
    case 2:
      return AddFill<uint16_t>(graph, params);
    default:
      return AddFill<uint32_t>(graph, params);
  }
}

// The neighbours of a node, and the edges to them; `get` is the runtime's function for either
// direction.
template <typename Get, typename Use>
void ForEachNeighbour(cudaGraphNode_t node, const Get& get, const Use& use) {
  size_t count = 0;
  CheckCuda(get(node, nullptr, nullptr, &count), "the edges of a node");
  std::vector<cudaGraphNode_t> neighbours(count);
  std::vector<cudaGraphEdgeData> edges(count);
  CheckCuda(get(node, neighbours.data(), edges.data(), &count), "the edges of a node");
  for (size_t i = 0; i < count; ++i) use(neighbours[i], edges[i]);
}

void Replace(cudaGraph_t graph, cudaGraphNode_t memset) {
  cudaGraphNode_t fill = AddFill(graph, memset);
  ForEachNeighbour(memset, cudaGraphNodeGetDependencies,
                   [&](cudaGraphNode_t before, const cudaGraphEdgeData& edge) {
                     CheckCuda(cudaGraphAddDependencies(graph, &before, &fill, &edge, 1),
                               "an edge");
                   });
  ForEachNeighbour(memset, cudaGraphNodeGetDependentNodes,
                   [&](cudaGraphNode_t behind, const cudaGraphEdgeData& edge) {
                     CheckCuda(cudaGraphAddDependencies(graph, &fill, &behind, &edge, 1),
                               "an edge");
                   });
  CheckCuda(cudaGraphDestroyNode(memset), "a memset node");
}

}  // namespace

void ReplaceMemsets(cudaGraph_t graph) {
  size_t count = 0;
  CheckCuda(cudaGraphGetNodes(graph, nullptr, &count), "the nodes of a graph");
  std::vector<cudaGraphNode_t> nodes(count);
  CheckCuda(cudaGraphGetNodes(graph, nodes.data(), &count), "the nodes of a graph");
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    CheckCuda(cudaGraphNodeGetType(node, &type), "the type of a node");
    if (type == cudaGraphNodeTypeMemset) Replace(graph, node);
  }
}

}  // namespace tandem::ops::cuda
