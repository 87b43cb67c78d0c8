#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "ops/cuda/device/context.cuh"
#include "ops/cuda/device/memset_nodes.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kBytes = 1024;

__global__ void AddOneKernel(uint8_t* memory) { ++memory[blockIdx.x * blockDim.x + threadIdx.x]; }

// Alternates clearing and counting: a wrong order or place gives other bytes.
void Enqueue(uint8_t* memory, cudaStream_t stream) {
  CheckCuda(cudaMemsetAsync(memory, 7, kBytes, stream), "bytes");
  AddOneKernel<<<4, kBytes / 4, 0, stream>>>(memory);
  CheckCuda(cudaMemset2DAsync(memory + 3, 64, 40, 11, 5, stream), "rows of bytes");
  CheckCuda(cudaMemsetAsync(memory + kBytes / 2, 90, 8, stream), "words");
  AddOneKernel<<<4, kBytes / 4, 0, stream>>>(memory);
  CheckCuda(cudaMemset2DAsync(memory + 800, 100, 3, 1, 2, stream), "a column");
}

std::vector<uint8_t> Read(const uint8_t* memory, cudaStream_t stream) {
  std::vector<uint8_t> bytes(kBytes);
  CheckCuda(cudaMemcpyAsync(bytes.data(), memory, kBytes, cudaMemcpyDefault, stream), "a copy");
  CheckCuda(cudaStreamSynchronize(stream), "the stream");
  return bytes;
}

TEST(MemsetNodesTest, KernelsInTheirPlaceWriteTheSame) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU here";
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  uint8_t* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, kBytes), "memory");
  Enqueue(memory, stream);
  const std::vector<uint8_t> expected = Read(memory, stream);

  CheckCuda(cudaMemsetAsync(memory, 0, kBytes, stream), "other bytes");
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  Enqueue(memory, stream);
  cudaGraph_t graph = nullptr;
  CheckCuda(cudaStreamEndCapture(stream, &graph), "a capture");
  ReplaceMemsets(graph);

  size_t count = 0;
  CheckCuda(cudaGraphGetNodes(graph, nullptr, &count), "the nodes");
  EXPECT_EQ(count, 6u);
  std::vector<cudaGraphNode_t> nodes(count);
  CheckCuda(cudaGraphGetNodes(graph, nodes.data(), &count), "the nodes");
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    CheckCuda(cudaGraphNodeGetType(node, &type), "a node");
    EXPECT_EQ(type, cudaGraphNodeTypeKernel);
  }
  cudaGraphExec_t exec = nullptr;
  CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "the graph");
  for (int run = 0; run < 2; ++run) {
    CheckCuda(cudaGraphLaunch(exec, stream), "the graph");
    EXPECT_EQ(Read(memory, stream), expected);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaFree(memory);
  cudaStreamDestroy(stream);
  EXPECT_TRUE(TakeFailure().ok());
}

}  // namespace
}  // namespace tandem::ops::cuda
